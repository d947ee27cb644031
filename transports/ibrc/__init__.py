"""The IBRC transport on the host: a proxy thread posts the requests that kernels write into a ring (kernels/paths/proxy.py).

``tables`` is the memory that its compiled loop works on, ``loop`` the loop; ``wqes`` and ``work_requests`` are what it posts with;
``thread`` runs it and is a NIC's side of the ring; ``nic`` and ``verbs`` are the NICs.
"""
