"""A guest with RDMA devices for machines that have none: QEMU, a Debian kernel with Soft-RoCE, the machine's own root and Python.

``PYTHONPATH=tests python -m rxe run COMMAND...`` runs a command in it. packages.py says what is needed and fetches it, kernel.py takes
the kernel apart, initramfs.py and the scripts init and devices are what the guest starts with, guest.py boots it. Standard library only.
"""
