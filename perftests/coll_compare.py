"""Collectives that the host calls, next to NCCL and PyTorch's symmetric memory, in one run and in CUDA graphs.

    mpirun -n 4 python -m pgas.perftests.coll_compare --json coll.json

``make compare`` runs it, and prints the table with NVSHMEM's column. Messages are float32. pgas's times are those of ``coll_on_stream
--cudagraph``, with all data checked. NCCL and symmetric memory get the same sizes and numbers of calls through PyTorch, if it is installed
and each PE has a GPU; the result of their first call is checked. They use no multicast (NVLS), because pgas uses none; to measure with it,
set NCCL_NVLS_ENABLE=1 and TORCH_SYMM_MEM_DISABLE_MULTICAST=0. The floor of a row is the time of the bytes that a GPU must send or receive,
at the bandwidth of puts by all PEs to their neighbors in this run, but at least the time of an empty kernel in a graph.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from numba import cuda

from pgas.base.arguments import Parser, output_file, size_flag, within
from pgas.base.config import parse_size
from pgas.base.output import outlive_reader
from pgas.perftests import coll_on_stream, shmem_put_bw
from pgas.perftests.compare import SIZES, TESTS, WITHOUT_MULTICAST, table
from pgas.perftests.harness import options, report, team, timing
from pgas.perftests.harness.grid import Counter
from pgas.perftests.harness.peers import Peers

__all__ = ["floor_us", "main"]

#: Bytes of a put that measures the bandwidth, and its CTAs and threads.
_PUT_BYTES, _CTAS, _THREADS = (1 << 10, 2, 32) if pgas.SIMULATOR else (64 << 20, 32, 1024)


@pgas.jit
def _nothing():  # type: ignore[no-untyped-def]
    pass


def floor_us(nbytes: float, put_gbps: float, launch_us: float) -> float:
    """Return the microseconds that a call takes at least, which moves nbytes to or from a GPU."""
    return max(launch_us, nbytes / put_gbps / 1e3)


def _put_gbps(iters: int) -> float:
    """Return the bandwidth of the slowest PE, while all PEs put to their right neighbors. Collective."""
    timing.prepare()
    dest, source, counter = pgas.zeros(_PUT_BYTES // 8, np.float64), pgas.zeros(_PUT_BYTES // 8, np.float64), Counter()
    seconds = 0.0
    for _ in range(2):  # the first launch warms up
        arguments = (dest, source, counter.array, counter.reserve(iters * _CTAS), iters, (pgas.my_pe() + 1) % pgas.n_pes())
        seconds = timing.kernel_seconds(shmem_put_bw.TEST.kernels["block"], _CTAS, _THREADS, arguments, together=True)
        pgas.barrier_all()
    counter.free()
    for array in (source, dest):
        pgas.free(array)
    return _PUT_BYTES * iters / max(pgas.allgather_object(seconds)) / 1e9


def _launch_us(iters: int) -> float:
    """Return the time of an empty kernel in a graph of them. Collective."""
    _nothing[1, 32]()
    pgas.synchronize()
    seconds = coll_on_stream.together(cuda.stream(), [lambda stream: _nothing[1, 32, stream]()] * iters, graph=True)
    return 1e6 * max(pgas.allgather_object(seconds)) / iters


def _cases(sizes: Sequence[int], iters: int) -> Iterator[tuple[str, int, int, team.Case]]:
    """Yield collective, size, number of calls, and the case of pgas's test. Large messages have a fifth of the calls."""
    for name, test_name in TESTS.items():
        test = coll_on_stream.TESTS[test_name]
        for size in sizes if name != "barrier" else [0]:
            count = iters if size < 1 << 20 else max(1, iters // 5)
            flags = ["-n", str(count), "-w", "2", "--cudagraph"]
            flags += ["-b", str(size), "-e", str(size), "-d", "float"] if size else []
            chosen = options.parse(test_name, "", test.defaults, test.scopes, flags)
            yield from ((name, size, count, case) for _, cases in test.tables(chosen) for case in cases)


def _measure(peers: Peers, sizes: Sequence[int], iters: int, put_gbps: float, launch_us: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each collective and size: microseconds by library, None where it is not measured. Collective."""
    for name, size, count, case in _cases(sizes, iters):
        row, faults = team.measure(case)
        if faults and pgas.my_pe() == 0:
            print(*(f"{name} of {size}: PE {pe}: {fault}" for pe, fault in faults.items()), sep="\n", file=sys.stderr)
        found = {"collective": name, "size": size, "pgas": row["latency_us"], "validated": not faults}
        found["floor"] = floor_us(size * (case.bus or 0), put_gbps, launch_us)
        for library, function, seconds in peers.measure(name, size, count):
            found |= {library: min(1e6 * seconds, found.get(library, float("inf"))), f"{library}, {function}": 1e6 * seconds}
        yield found


def main() -> int:
    """Measure, and print the table on PE 0. The exit status is 1 if pgas's data is wrong."""
    outlive_reader()
    parser = Parser("python -m pgas.perftests.coll_compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    few = pgas.SIMULATOR
    iters, most = (2, SIZES[0]) if few else (100, SIZES[-1])
    parser.add_argument("-n", "--iters", type=within(1, 100_000), default=iters, metavar="N", help="calls in a graph [%(default)s]")
    largest = within(SIZES[0], SIZES[-1], parse_size)
    parser.add_argument("-e", "--max_size", type=largest, default=most, metavar="SIZE", help=f"largest size [{size_flag(most)}]")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    for variable, value in WITHOUT_MULTICAST.items():
        os.environ.setdefault(variable, value)
    sizes = [size for size in SIZES if size <= arguments.max_size]
    with pgas.init() as job:
        facts = pgas.info()
        about = {name: facts[name] for name in ("machine", "gpu", "transport", "npes", "versions")}
        put_gbps, launch_us, peers = _put_gbps(arguments.iters), _launch_us(arguments.iters), Peers(job)
        run = {"test": "coll_compare", "date": report.now(), "commit": report.commit(), **about, "args": {"iters": arguments.iters}}
        flags = ["-m", "pgas.perftests.coll_compare", "-n", str(arguments.iters), "-e", size_flag(arguments.max_size)]
        run |= {"command": report.command_text(job.n_pes, "python", flags), "put_gbps": put_gbps, "launch_us": launch_us}
        rows: list[dict[str, Any]] = []
        run |= {"peers": peers.version, "missing": peers.missing, "rows": rows}
        for row in _measure(peers, sizes, arguments.iters, put_gbps, launch_us):
            rows.append(row)
            if job.my_pe == 0 and arguments.json is not None:  # after each row, because another library may hang
                Path(arguments.json).write_text(report.rows_in_lines(run) + "\n", encoding="utf-8")
        peers.close()
        if job.my_pe == 0:
            print(*table(run), sep="\n")
    return int(not all(row["validated"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
