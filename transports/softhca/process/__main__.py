"""The process of the software NIC (see server)."""

import os
import sys

from pgas.transports.softhca.process.server import main

main()
sys.stderr.flush()
os._exit(0)  # Python's own end takes most of a second on a busy machine, and the PE that started this process waits for it.
