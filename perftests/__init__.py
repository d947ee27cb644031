"""NVSHMEM's point-to-point perf tests as programs of pgas: its names, flags, tables, and checked data.

``shmem_put_bw`` and ``shmem_p_bw`` are the tests, ``demo`` is what ``make demo`` prints after them. What they
share, in reading order:

* ``workload``  how a row's bytes become messages (pure arithmetic);
* ``payload``   what is sent, what must arrive, and the first byte that did not (numpy only);
* ``options``   the command line;
* ``grid``      the barrier between iterations, the one piece of device code that the tests share;
* ``timing``    one timed kernel;
* ``harness``   runs the rows of a test on two PEs;
* ``report``    tables and JSON;  ``plot``  PNG from that JSON;  ``style``  how pictures look.

``soak`` performs random operations and checks every byte: ``draws`` says what each thread does, ``traffic`` does it and
looks at the result.
``check_gpu`` and ``figures`` start them as jobs (``jobs``); ``figures`` keeps the rows of many runs in one JSON, ``findings`` reads numbers
from it and ``pictures`` draws it.
"""
