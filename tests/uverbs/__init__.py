"""The kernel's RDMA interface, emulated in Python over the software card, under the real libibverbs, libmlx5 and pyverbs.

``python -m uverbs COMMAND`` (in tests/) runs a command, which may be mpirun, with two devices, ``mlx5_0`` (InfiniBand) and ``mlx5_1``
(RoCE). It needs no RDMA hardware, kernel module or root, and changes nothing on the machine. In every Python process of the command::

    libibverbs, libmlx5     open, ioctl and mmap of /dev/infiniband/uverbsN        shim.c, preloaded
    process.py              descriptors, ioctls as objects, methods and attributes  <rdma/rdma_user_ioctl_cmds.h>
    verbs.py                methods of ib_uverbs: context, port, PD, MR             <rdma/ib_user_ioctl_cmds.h>, <rdma/ib_user_verbs.h>
    devx.py                 methods of mlx5_ib: DevX commands, UMEM, UAR            <rdma/mlx5_user_ioctl_cmds.h>, <rdma/mlx5-abi.h>
    cards.py                the card that executes them

A module adds methods with ``process.method`` (ioctls) and ``verbs.write_command`` (the older write commands). Layouts are those of the
kernel's headers; whether a real kernel accepts a call is known only as far as the headers say.
"""
