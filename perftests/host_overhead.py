"""Host time of calls: kernel launches, operations on a stream, and slices.

    mpirun -n 2 python -m pgas.perftests.host_overhead

Each row is the time for which a call occupies the host: the median over batches of calls. The GPU works concurrently, and the test waits
for it after each batch. Operations have 4 KiB of float32 and are on a stream, unless the row says otherwise.
``numba.cuda`` is numba-cuda's own launch of a kernel that does not use pgas, for comparison.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.base.arguments import Parser, output_file, within
from pgas.base.output import outlive_reader
from pgas.perftests.harness.report import commit, now

#: Number of elements of an operand: 4 KiB of float32.
_SIZE = 1024


def _store(a):  # type: ignore[no-untyped-def]
    a[0] = 1


@pgas.jit
def _nothing(dest, source, n):  # type: ignore[no-untyped-def]
    if n < 0:
        dest[0] = source[0]


def _calls(stream: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls by name; they need two PEs. Collective."""
    me, n, team = pgas.my_pe(), pgas.n_pes(), pgas.TEAM_WORLD
    peer = (me + 1) % n
    dest, source, wide = pgas.zeros(_SIZE, np.float32), pgas.zeros(_SIZE, np.float32), pgas.zeros(n * _SIZE, np.float32)
    words, sig = pgas.zeros(1, np.int64), pgas.zeros(1, np.uint64)
    others, own = cuda.jit(_store), cuda.device_array(_SIZE, np.float32)
    ours = pgas.jit(_store)
    put = pgas.put.bind(dest, source, peer, stream=stream)
    reduce = pgas.reduce.bind(team, dest, source, pgas.SUM, stream=stream)
    configured, bound = _nothing[1, 32, stream], _nothing[1, 32, stream].bind(dest, source, 1)
    rounds, starts = itertools.count(1000), itertools.cycle(range(_SIZE // 2))  # Numbers that Python does not keep, more starts than calls.

    def new_slice() -> Any:
        start = next(starts)
        return source[start : start + _SIZE // 2]

    return {
        "numba.cuda launch": lambda: others[1, 32, stream](own),
        "pgas.jit launch": lambda: ours[1, 32, stream](dest),
        "pgas.jit launch, 3 arguments": lambda: _nothing[1, 32, stream](dest, source, 1),
        "pgas.jit launch, configured": lambda: configured(dest, source, 1),
        "pgas.jit launch, bound": bound,
        "pgas.launch": lambda: pgas.launch(_nothing, 1, 32, (dest, source, 1), stream),
        "slice": lambda: source[: _SIZE // 2],
        "slice, another each time": new_slice,
        "fence": lambda: pgas.fence(stream=stream),
        "quiet": lambda: pgas.quiet(stream=stream),
        "sync_all": lambda: pgas.sync_all(stream=stream),
        "barrier_all": lambda: pgas.barrier_all(stream=stream),
        "signal_op": lambda: pgas.signal_op(sig, 0, 1, pgas.SIGNAL_ADD, peer, stream=stream),
        "signal_op, another value each time": lambda: pgas.signal_op(sig, 0, next(rounds), pgas.SIGNAL_SET, peer, stream=stream),
        "p": lambda: pgas.p(words, 0, 1, peer, stream=stream),
        "atomic_add": lambda: pgas.atomic_add(words, 0, 1, peer, stream=stream),
        "put": lambda: pgas.put(dest, source, peer, stream=stream),
        "put, bound": put,
        "put of a slice": lambda: pgas.put(dest, source[: _SIZE // 2], peer, stream=stream),
        "put from an array of Numba": lambda: pgas.put(dest, own, peer, stream=stream),
        "put of another slice each time": lambda: pgas.put(dest, new_slice(), peer, stream=stream),
        "get": lambda: pgas.get(dest, source, peer, stream=stream),
        "put_signal": lambda: pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, peer, stream=stream),
        "put_signal, another value each time": lambda: pgas.put_signal(
            dest, source, sig, 0, next(rounds), pgas.SIGNAL_SET, peer, stream=stream
        ),
        "team_sync": lambda: pgas.team_sync(team, stream=stream),
        "barrier": lambda: pgas.barrier(team, stream=stream),
        "broadcast": lambda: pgas.broadcast(team, dest, source, 0, stream=stream),
        "fcollect": lambda: pgas.fcollect(team, wide, source, stream=stream),
        "alltoall": lambda: pgas.alltoall(team, wide, source, stream=stream),
        "reduce": lambda: pgas.reduce(team, dest, source, pgas.SUM, stream=stream),
        "reduce, bound": reduce,
        "reducescatter": lambda: pgas.reducescatter(team, dest, wide, pgas.SUM, stream=stream),
        "put without a stream": lambda: pgas.put(dest, source, peer),
        "g, which returns a value": lambda: pgas.g(words, 0, peer),
        "atomic_fetch_add": lambda: pgas.atomic_fetch_add(words, 0, 1, peer),
        "synchronize(), nothing to wait for": pgas.synchronize,
        "quiet() without a stream": pgas.quiet,
        "sync_all() without a stream": pgas.sync_all,
        "barrier_all() without a stream": pgas.barrier_all,
    }


def _median_us(call: Callable[[], Any], batches: int, of: int) -> float:
    """Return the median host time of a call in microseconds. Collective."""
    times = []
    for batch in range(batches + 1):  # The first batch compiles.
        pgas.barrier_all()
        started = time.perf_counter()
        for _ in range(of if batch else 1):
            call()
        times.append((time.perf_counter() - started) / of)
        pgas.synchronize()
    return statistics.median(times[1:]) * 1e6


def main() -> int:
    """Print the rows on PE 0."""
    outlive_reader()
    parser = Parser("python -m pgas.perftests.host_overhead", description=__doc__)
    few = pgas.SIMULATOR
    parser.add_argument("-n", "--batches", type=within(1, 1000), default=3 if few else 15, help="batches of each call [%(default)s]")
    parser.add_argument("-b", "--batch", type=within(1, 1000), default=3 if few else 100, help="calls of a batch [%(default)s]")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args()
    with pgas.init():
        stream = cuda.stream()
        rows = {name: _median_us(call, options.batches, options.batch) for name, call in _calls(stream).items()}
        if pgas.my_pe() == 0:
            where = "the simulator: an interpreter's time" if pgas.SIMULATOR else pgas.info()["gpu"]
            print(f"# host time of a call, number of PEs {pgas.n_pes()}, on {where}, transport {pgas.info()['transport']}")
            print(f"{'call':35} {'us':>8} {'calls/s':>10}")
            for name, us in rows.items():
                print(f"{name:35} {us:8.1f} {1e6 / us:10.0f}", flush=True)
            if options.json is not None:
                about = {"test": "host_overhead", "date": now(), "commit": commit(), "n_pes": pgas.n_pes(), **pgas.info()}
                Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1, default=str) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
