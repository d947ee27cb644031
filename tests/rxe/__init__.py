"""A guest with RDMA devices for machines that have none: QEMU, a Debian kernel with Soft-RoCE, the machine's own root and Python.

``PYTHONPATH=tests python -m rxe run COMMAND...`` runs a command in it. packages.py says what is needed and fetches it, kernel.py takes
the kernel apart, initramfs.py and the scripts init, live.sh and devices are what the guest starts with, clock.py is its time, guest.py
boots it. With ``--forks`` it goes on from where it was kept on disk (kept.py, files.py, pause.sh, monitor.py), behind the start of Python
and the import of libraries (libraries.py), and its programs are forks of that Python (forks.py, client.py). Standard library only.

How long a warm ``make check-rxe`` takes (QEMU 7.2 on 2 cores of an AMD EPYC, both idle; emulated, as KVM is of no use on a machine that is
such a guest itself): 33 to 35 s. Of that 10 go to the question which files a guest must be made from, to reading it, to devices and the
import of pgas; the 21 tests take 10 at 2 PEs and 16 at 3. To make the guest takes 25 s, once. Where nothing is kept, each run boots for 6 s
and imports for 25 on one emulated processor. Other work on the machine doubles all of that. ``make check-rxe-suite`` takes 13 minutes at
2 PEs and 20 at 3 (2026-11-22: 848 and 874 tests passed), much of it atomics of all PEs on one word, which are compare-and-swap loops for
floats.
"""
