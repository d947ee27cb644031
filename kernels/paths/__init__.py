"""The device side of the transports: p2p, ibgda and ibrc are modules of one shape; two.py joins p2p and one of the others."""
