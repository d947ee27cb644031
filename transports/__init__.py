"""Transports on the host: the memory behind the window, and the ways to other PEs' slots."""
