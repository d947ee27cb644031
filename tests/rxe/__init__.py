"""A guest with RDMA devices, for machines that have none: QEMU, a Debian kernel with Soft-RoCE, the machine's own root and Python.

``PYTHONPATH=tests:tests/support python -m rxe run COMMAND...`` runs a command in it. packages.py fetches packages, guest.py boots it, the
scripts init and devices set it up. With ``--forks`` programs are forks of one Python that has imported the tests' modules (forks.py).
Standard library only.

QEMU emulates the processor: on machines that are guests themselves, KVM is missing or too slow. On 2 idle cores of an AMD EPYC the guest
boots in 10 s and imports the tests' modules in 25 s; the 21 tests of ``make check-rxe`` take 10 s at 2 PEs and 16 s at 3. Other work on the
machine doubles these times. ``make check-rxe-suite`` takes 13 minutes at 2 PEs and 20 at 3, much of it for float atomics of all PEs on one
word, which are compare-and-swap loops. A job on two machines takes a minute or two to start: its PEs are no forks.
"""
