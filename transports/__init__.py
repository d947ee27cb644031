"""Transports on the host: the memory behind the window, and the data paths to other PEs' slots."""
