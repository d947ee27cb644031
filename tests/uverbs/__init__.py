"""The kernel's part of RDMA, played in Python over the software card, under the real libibverbs, libmlx5 and pyverbs.

``python -m uverbs COMMAND`` (in tests/) runs a command, mpirun too, in which a device ``mlx5_0`` (InfiniBand) and another, ``mlx5_1``
(RoCE), exist. Nothing of the machine is needed or changed: no RDMA hardware, kernel module or root. In every Python process of it::

    libibverbs, libmlx5     open, ioctl and mmap of /dev/infiniband/uverbsN        shim.c, preloaded
    process.py              descriptors, ioctls as objects, methods and attributes  <rdma/rdma_user_ioctl_cmds.h>
    verbs.py                methods of ib_uverbs: context, port, PD, MR             <rdma/ib_user_ioctl_cmds.h>, <rdma/ib_user_verbs.h>
    devx.py                 methods of mlx5_ib: DevX commands, UMEM, UAR            <rdma/mlx5_user_ioctl_cmds.h>, <rdma/mlx5-abi.h>
    cards.py                the card that executes them

A module adds methods by registering functions with ``process.method`` (ioctls) and ``verbs.write_command`` (the older write commands).
The layout of what goes through is the kernel's; whether a real kernel would accept it is known only as far as these headers are.
"""
