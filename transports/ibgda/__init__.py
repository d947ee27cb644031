"""The IBGDA transport on the host: sets up the queues that kernels post to."""
