"""NVSHMEM's perf tests, written with pgas, with the same names, flags, and tables; all data is checked.

``shmem_*`` are the point-to-point tests; ``demo`` prints the last lines of ``make demo``. They share ``harness``, in reading order:

* ``workload``  divides a row's bytes into messages (pure arithmetic);
* ``payload``   the data sent, the data expected, and the first wrong byte (numpy only);
* ``options``   the command line;
* ``grid``      the barrier between iterations;  ``timing``  times one kernel;
* ``transfer``  source and guarded destination of a row;  ``counts``  compares the NIC's counters with the operations issued;
* ``pair``      runs the rows of a test on two PEs;
* ``bulk``      kernels that call put or get;  ``atomics``  kernels of atomics;
* ``team``      runs the rows of a test of collectives, on any number of PEs;  ``collectives``  the data of such a row;
* ``peers``     collectives of NCCL and of PyTorch's symmetric memory in a job of pgas;  ``nccl_exchange``  ``ep`` over NCCL;
* ``report``    tables and JSON;  ``jobs``  runs commands, MPS, and mpirun.

``ping_pong`` has the round trips, ``coll_latency`` and ``coll_on_stream`` the collectives called in kernels and on the host,
``rma_on_stream`` puts and gets called on the host. ``jacobi`` is NVIDIA's Jacobi solver, by its flags. ``overlap`` measures communication
that overlaps with a library's matrix products, ``ep`` the kernels of the gallery's expert-parallel dispatch and combine. ``host_overhead``
measures what calls cost the host. ``plot`` draws pictures from a test's JSON. ``compare`` shows results next to those of NVSHMEM, NCCL, and
symmetric memory; ``coll_compare`` measures collectives for it. ``programs`` runs random programs and compares the results with an oracle.
"""
