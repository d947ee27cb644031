"""NVSHMEM's perf tests, written with pgas: the same names, flags and tables; all data is checked.

``shmem_*`` are the point-to-point tests, ``demo`` prints the last lines of ``make demo``. Shared modules, in reading order:

* ``workload``  how a row's bytes are divided into messages (pure arithmetic);
* ``payload``   the data sent, the data expected, and the first wrong byte (numpy only);
* ``options``   the command line;
* ``grid``      the barrier between iterations;  ``timing``  times one kernel;
* ``transfer``  source and guarded destination of a row;  ``counts``  compares the NIC's counters with the operations issued;
* ``harness``   runs the rows of a test on two PEs;
* ``bulk``      kernels that call put or get;  ``atomics``  kernels of atomics;  ``ping_pong``  round trips;
* ``report``    tables and JSON;  ``plot``  pictures from that JSON, and ``make figures``;
* ``compare``   results beside NVSHMEM's figures, which are in baselines/nvshmem-*.json.

Tests of collectives, on any number of PEs:

* ``coll_latency``  collectives called in kernels;  ``coll_on_stream``  called on the host;
* ``coll_harness``  runs the rows of a test;  ``collectives``  the data of a row.

``jacobi`` is NVIDIA's Jacobi solver, by its flags.

``programs`` runs random programs and compares the results with an oracle.
``check_gpu``, ``compare`` and ``figures`` run perf tests through ``jobs``.
"""
