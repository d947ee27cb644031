"""The mlx5 data sheet: the formats of WQEs, CQEs, doorbells and commands of a ConnectX, as tables, ints and IntEnums.

Kernels build WQEs from it, the driver builds commands from it, the software card decodes both with it. The sheet imports none of them.
Read in this order: ``fields`` (what a table is), ``wqe``, ``send_queue``, ``doorbell``, ``cqe`` (the data path), ``contexts``,
``capabilities``, ``commands`` (the control path).

Sources: facts/mlx5.md, cited by section; ``infiniband/mlx5dv.h`` of rdma-core, checked by tests/test_mlx5_header.py; mlx5_ifc.h (rdma-core
59) for what the facts lack. Names are those of the PRM, as ``mlx5dv.h`` and ``mlx5_ifc.h`` spell them. Nothing was tried against a card.
"""
