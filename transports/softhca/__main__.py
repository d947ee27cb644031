"""The process of the software card (see server)."""

from pgas.transports.softhca.server import main

main()
