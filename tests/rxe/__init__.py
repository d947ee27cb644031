"""A guest with RDMA devices for machines that have none: QEMU, a Debian kernel with Soft-RoCE, the machine's own root and Python.

``PYTHONPATH=tests python -m rxe run COMMAND...`` runs a command in it. packages.py says what is needed and fetches it, kernel.py takes
the kernel apart, initramfs.py and the scripts init and devices are what the guest starts with, clock.py is its time, guest.py boots it.
Standard library only.

How long a warm run of the traffic takes (QEMU 7.2 on 2 cores of an AMD EPYC that others used, too; emulated, as KVM is of no use on a
machine that is such a guest itself): 7 to 11 s until the devices are there. Then 50 to 65 s of one emulated processor to import what
tests use, which takes the machine itself 1.7 s: Numba and pgas 25, the 33 functions that Numba kept on disk 12, pytest and Hypothesis 7,
Python and NumPy 6, llvmlite 3. Then about 80 s of processor time, of both, at 2 PEs, and 190 at 3. Boot and imports, one after the other,
are the minute already. A guest kept on disk behind its imports would save them; QEMU writes one only while no 9p folder is mounted.
"""
