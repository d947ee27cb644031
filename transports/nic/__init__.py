"""The host side of a NIC, regardless of the transport that drives it: its queue pairs, its outstanding work, and snapshots for reports."""
