"""Transports on the host: the memory behind the window, and what makes other PEs' slots reachable."""
