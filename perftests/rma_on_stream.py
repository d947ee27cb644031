"""Time and bandwidth of puts and gets that the host calls on a stream, like NVSHMEM's host test ``bw``; all data is checked.

    mpirun -n 2 python -m pgas.perftests.rma_on_stream put_on_stream -n 100 -w 10 -b 4 -e 64M
    mpirun -n 2 python -m pgas.perftests.rma_on_stream get_on_stream --cudagraph

PE 0 calls, and PE 1 has the other operand. All calls of a row are queued, or with ``--cudagraph`` captured into a graph, and the time is
divided. Without a graph, a small message takes as long as the host needs for a call. ``PGAS_COPY_ENGINE_BYTES`` determines which messages
the GPU's copy engine moves.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.coll_on_stream import together
from pgas.perftests.harness.options import OF_COLLECTIVES, Defaults, Options
from pgas.perftests.harness.pair import RefusedError
from pgas.perftests.harness.team import Case, CollTest, Measured, run_named

#: Bytes before and behind a destination that must not change.
_GUARD = 64


def _measure(function: Callable[..., Any], size: int, options: Options) -> Measured:
    stream, puts, me = cuda.stream(), function is pgas.put, pgas.my_pe()
    sent = np.random.default_rng((options.seed, size)).integers(1, 256, size, np.uint8)
    with pgas.zeros(size + 2 * _GUARD, np.uint8) as guarded, pgas.array(sent) as source:
        dest = guarded[_GUARD : _GUARD + size]

        def call(on: Any) -> None:
            if me == 0:
                function(dest, source, 1, stream=on)

        def fault() -> str | None:
            """Synchronize, and return what is wrong with the destination; then clear it."""
            pgas.synchronize(stream)
            pgas.barrier_all()
            if me != int(puts):
                return None
            expected = np.pad(sent, _GUARD)
            wrong = np.flatnonzero(guarded.copy_to_host() != expected)
            guarded.copy_to_device(np.zeros_like(expected))
            return f"{wrong.size} wrong bytes, the first at offset {wrong[0] - _GUARD}" if wrong.size else None

        for _ in range(options.warmup_iters):
            call(stream)
        early = fault()
        pgas.barrier_all()
        seconds = together(stream, [call] * options.iters, graph=options.cudagraph) / options.iters
        found = early or fault()
    return Measured(seconds if me == 0 else 0.0, fault=found)


def _of(function: Callable[..., Any]) -> CollTest:
    def tables(options: Options) -> Iterator[tuple[str, list[Case]]]:
        if pgas.n_pes() < 2:
            raise RefusedError("two PEs are needed: use mpirun -n 2")
        measures = {size: functools.partial(_measure, function, size, options) for size in options.sizes()}
        cases = [Case(size, None, None, None, measure, size, "char", None, 1.0) for size, measure in measures.items()]
        yield f"{function.__name__}_on_stream", cases

    fixed = (*OF_COLLECTIVES, "ctas", "threads_per_cta", "datatype")
    defaults = Defaults("char", 4, 64 << 20, step=4, iters=100, warmup_iters=10, ctas=1, captures=True, fixed=fixed)
    small = replace(defaults, max_size=1 << 10, step=16, iters=3, warmup_iters=2)
    text = f"Bandwidth of {function.__name__} called by the host on a stream, every byte checked."
    return CollTest(f"{function.__name__}_on_stream", text, tables, defaults, small, ("block",))


TESTS = {test.name: test for test in (_of(pgas.put), _of(pgas.get))}


def main() -> int:
    """Run the test named by the program's name or otherwise by its first argument."""
    return run_named(TESTS)


if __name__ == "__main__":
    sys.exit(main())
