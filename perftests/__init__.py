"""NVSHMEM's point-to-point perf tests as programs of pgas: its names, flags, tables, and checked data.

``shmem_*`` are the tests, ``demo`` is what ``make demo`` prints after them. What they share, in reading order:

* ``workload``  how a row's bytes become messages (pure arithmetic);
* ``payload``   what is sent, what must arrive, and the first byte that did not (numpy only);
* ``options``   the command line;
* ``grid``      the barrier between iterations;  ``timing``  one timed kernel;
* ``transfer``  source and guarded destination of a row;  ``counts``  what a NIC counted, against what was issued;
* ``harness``   runs the rows of a test on two PEs;
* ``bulk``      kernels around one call a thread, warp or CTA;  ``atomics``  around an atomic;  ``ping_pong``  there and back;
* ``report``    tables and JSON;  ``plot``  pictures from that JSON, and ``make figures``;
* ``compare``   results beside NVSHMEM's figures, which baselines/nvshmem-*.json holds.

``programs`` performs random programs and compares them with an oracle.
``check_gpu``, ``compare`` and ``plot`` start perf tests as ``jobs``.
"""
