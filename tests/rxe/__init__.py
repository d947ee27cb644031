"""A guest with RDMA devices for machines that have none: QEMU, a Debian kernel with Soft-RoCE, the machine's own root and Python.

``PYTHONPATH=tests python -m rxe run COMMAND...`` runs a command in it. packages.py fetches what is needed, guest.py boots the guest, which
starts with init and devices. With ``--forks`` its programs are forks of one Python that has imported what tests use (forks.py). Standard
library only.

QEMU emulates the processor: where machines are themselves guests, KVM is missing or too slow. On 2 cores of an AMD EPYC, both idle, the
guest boots in 10 s and Python imports what tests use in 25; the 21 tests of ``make check-rxe`` take 10 s at 2 PEs and 16 at 3. Other work
on the machine doubles that. ``make check-rxe-suite`` takes 13 minutes at 2 PEs and 20 at 3, much of it atomics of all PEs on one word,
which are compare-and-swap loops for floats.
"""
