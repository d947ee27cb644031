"""The mlx5 hardware formats: WQEs, CQEs, doorbells, and commands of a ConnectX, as tables, ints, and IntEnums.

Kernels build WQEs and the driver builds commands from these definitions; the software NIC decodes both with them. This package imports none
of its users. Read in this order: ``fields`` (what a table is); ``wqe``, ``send_queue``, ``doorbell``, ``cqe`` (the data path);
``contexts``, ``capabilities``, ``commands`` (the control path).

Sources: ``infiniband/mlx5dv.h`` of rdma-core, checked by test_mlx5_header.py; ``mlx5_ifc.h`` of rdma-core 59 and Linux; where these lack a
definition, the device headers of NVSHMEM 3.5.1 and DOCA GPUNetIO, named at each definition. Names are those of the PRM, as in these
headers. Nothing has been tested on a physical NIC.
"""
