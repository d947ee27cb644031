"""What is compiled for the proxy thread, loaded when this is imported: forks need not load it again."""

from pgas.transports.ibrc import work_requests
from pgas.transports.ibrc.loop import compiled

compiled(work_requests)
