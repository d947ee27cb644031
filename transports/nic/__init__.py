"""The host side of a NIC, whichever transport drives it: its queue pairs, its outstanding work, and what reports read of it."""
