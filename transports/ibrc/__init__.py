"""The IBRC transport on the host: a proxy thread posts the requests that kernels write into a ring (kernels/paths/ibrc.py).

``loop`` is the thread's compiled loop, ``tables`` its memory, and ``wqes`` and ``work_requests`` are its two posting back ends. ``thread``
runs the loop and is the NIC's side of the ring; ``nic`` and ``verbs`` are the NICs.
"""
