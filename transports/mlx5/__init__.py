"""The mlx5 data sheet: what a ConnectX and its driver say to each other, as tables, ints and IntEnums.

Kernels build WQEs from it, the driver builds commands from it, the software card decodes both with it; none of them is in here.
Read in this order: ``fields`` (what a table is), ``wqe``, ``send_queue``, ``doorbell``, ``cqe`` (the data path), ``contexts``,
``capabilities``, ``commands`` (the control path).

Sources: facts/mlx5.md, cited by section; ``infiniband/mlx5dv.h`` of rdma-core, which tests/test_mlx5_header.py compares with; and
mlx5_ifc.h (rdma-core 59) for what the facts lack. The names are those of the PRM as ``mlx5dv.h`` and ``mlx5_ifc.h`` spell them. Nothing
here was tried against a card.
"""
