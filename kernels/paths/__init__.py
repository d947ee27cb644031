"""Device side of the transports: p2p, ibgda, and ibrc are modules with the same functions; two.py combines p2p with one of the others."""
