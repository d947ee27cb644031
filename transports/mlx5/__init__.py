"""The mlx5 data sheet: the formats of WQEs, CQEs, doorbells and commands of a ConnectX, as tables, ints and IntEnums.

Kernels build WQEs from it, the driver builds commands from it, the software card decodes both with it. The sheet imports none of them.
Read in this order: ``fields`` (what a table is), ``wqe``, ``send_queue``, ``doorbell``, ``cqe`` (the data path), ``contexts``,
``capabilities``, ``commands`` (the control path).

Sources: ``infiniband/mlx5dv.h`` of rdma-core, checked by test_mlx5_header.py; ``mlx5_ifc.h`` of rdma-core 59 and Linux; where these
are silent, the device headers of NVSHMEM 3.5.1 and DOCA GPUNetIO, named at the place. Names are the PRM's, as in those headers. Nothing was
tried against a card.
"""
