"""The process of the software NIC (see server)."""

from pgas.transports.softhca.process.server import main

main()
