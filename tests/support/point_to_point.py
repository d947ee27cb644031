"""Runs every point-to-point perf test with few iterations in one job: ``python point_to_point.py FOLDER``.

FOLDER gets the JSON of each test over PGAS_TRANSPORT. The exit status is that of the first failing test.
"""

import importlib
import sys
from pathlib import Path

import pgas
from pgas.perftests.harness import pair

#: NVSHMEM's names (perftest/device/pt-to-pt).
NAMES = [
    "shmem_put_bw", "shmem_get_bw", "shmem_p_bw", "shmem_g_bw", "shmem_st_bw", "shmem_atomic_bw",
    "shmem_put_latency", "shmem_get_latency", "shmem_p_latency", "shmem_g_latency", "shmem_atomic_latency",
    "shmem_put_ping_pong_latency", "shmem_p_ping_pong_latency", "shmem_signal_ping_pong_latency",
    "shmem_put_signal_ping_pong_latency", "shmem_put_atomic_ping_pong_latency", "shmem_atomic_ping_pong_latency",
]  # fmt: skip

TESTS = [importlib.import_module(f"pgas.perftests.{name}").TEST for name in NAMES]

#: Flags for short runs with remainders.
FEW = {
    "shmem_g_bw": "-b 4 -e 1K -f 9 -n 2 -w 1 -c 2 -t 40",
    "shmem_get_bw": "-b 4 -e 8K -f 9 -n 2 -w 1 -c 3 -t 32 --bidir",
    "shmem_st_bw": "-b 4 -e 1K -f 9 -n 2 -w 1 -c 2 -t 40 -i 3",
    "shmem_put_latency": "-b 4 -e 8K -f 45 -n 2 -w 1 -t 48",
    "shmem_get_latency": "-b 4 -e 8K -f 45 -n 2 -w 1 -t 48",
    "shmem_p_latency": "-b 4 -e 400 -f 9 -n 2 -w 1 -t 40",
    "shmem_g_latency": "-b 4 -e 400 -f 9 -n 2 -w 1 -t 40",
    "shmem_atomic_latency": "-n 3 -w 1 -a swap",
    "shmem_put_ping_pong_latency": "-b 4 -e 8K -f 45 -n 3 -w 2 -s warp",
    "shmem_p_ping_pong_latency": "-b 4 -e 400 -f 9 -n 3 -w 2 -t 40",
    "shmem_put_signal_ping_pong_latency": "-b 4 -e 8K -f 45 -n 3 -w 2",
    "shmem_put_atomic_ping_pong_latency": "-b 4 -e 8K -f 45 -n 3 -w 2 -s block -t 40",
    "shmem_signal_ping_pong_latency": "-n 5 -w 2",
    "shmem_atomic_ping_pong_latency": "-n 5 -w 2",
}

#: Atomics that post and that fetch, with one WQEBB and with two.
ATOMICS = ("inc", "fetch_add", "compare_swap", "fetch_and", "set")


def runs():
    """Yield the name of the result, the test and the flags of each run."""
    for test in TESTS:
        if test.name in FEW:
            yield test.name, test, FEW[test.name].split()
    for op in ATOMICS:
        test = TESTS[NAMES.index("shmem_atomic_bw")]
        yield f"shmem_atomic_bw-{op}", test, f"-b 4 -e 400 -f 9 -n 3 -w 1 -c 2 -t 16 -a {op}".split()


def main(folder):
    with pgas.init() as job:
        transport = job.transport
        for name, test, flags in runs():
            if transport in test.transports:
                if status := pair.run(test, [*flags, "--json", str(Path(folder, f"{name}.json"))]):
                    return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
