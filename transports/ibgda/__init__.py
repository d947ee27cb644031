"""The IBGDA transport on the host: what sets the queues up that kernels post to themselves."""
