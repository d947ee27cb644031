"""The process of the software card (see server)."""

from pgas.transports.softhca.process.server import main

main()
