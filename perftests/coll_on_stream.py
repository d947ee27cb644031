"""Latency of collectives that the host calls on a stream: NVSHMEM's nine tests, with its names, flags, and tables; all data is checked.

    mpirun -n 2 reduction_on_stream -n 100 -w 10 -b 8 -e 4M -d float -o sum
    mpirun -n 2 alltoall_on_stream -n 100 --cudagraph

Like NVSHMEM's, the tests of messages time each call between two events and wait for it; those of barriers, and all with ``--cudagraph``,
queue all calls and divide the time. ``python -m pgas.perftests.coll_on_stream NAME FLAGS`` also runs one.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness.collectives import COLLECTIVES, Buffers, CollectiveMessage, messages
from pgas.perftests.harness.options import OF_COLLECTIVES, Defaults, Options
from pgas.perftests.harness.peers import LAUNCHES
from pgas.perftests.harness.team import Case, CollTest, Measured, run_named


def _each(stream: Any, calls: Sequence[Callable[[], None]]) -> list[float]:
    found = []
    for call in calls:
        start, stop = cuda.event(timing=True), cuda.event(timing=True)
        start.record(stream)
        call()
        stop.record(stream)
        stream.synchronize()
        found.append(float(cuda.event_elapsed_time(start, stop)) / 1e3)
    return found


def together(stream: Any, calls: Sequence[Callable[[Any], None]], *, graph: bool) -> float:
    """Return the seconds of all calls, which are queued together or launched as a graph. The simulator has no graphs.

    Like those of other libraries (harness/peers.py), a graph is launched once to warm up, and then LAUNCHES times. The median of these
    counts, because a host that launches late delays all PEs.
    """
    graph = graph and not pgas.SIMULATOR
    queue = _captured(stream, calls) if graph else lambda: _queue(stream, calls)
    found = []
    for _ in range(1 + LAUNCHES if graph else 1):
        pgas.barrier_all()
        pgas.sync_all(stream=stream)
        found += _each(stream, [queue])
    return statistics.median(found[1:] or found)


def _queue(stream: Any, calls: Sequence[Callable[[Any], None]]) -> None:
    for call in calls:
        call(stream)


def _captured(stream: Any, calls: Sequence[Callable[[Any], None]]) -> Callable[[], None]:
    from cuda.core import Stream

    core = Stream.from_handle(int(stream.handle))
    builder = core.create_graph_builder()
    builder.begin_building()
    _queue(builder, calls)
    graph = builder.end_building().complete()
    graph.upload(core)
    return lambda: graph.launch(core)


# Messages -------------------------------------------------------------------------------------------------------------------------


def _measure(message: CollectiveMessage, options: Options) -> Measured:
    function, iters, stream = getattr(pgas, message.collective.name), options.iters, cuda.stream()
    more = (getattr(pgas, message.op.upper()),) if message.collective.reduces else (0,) if message.collective.name == "broadcast" else ()
    with Buffers(message, options.seed) as buffers:

        def call(i: int, on: Any) -> None:
            function(pgas.TEAM_WORLD, buffers.dest, buffers.variant(i), *more, stream=on)

        fault = _rehearse(buffers, functools.partial(call, on=stream), stream, options.warmup_iters)
        buffers.clear(iters)
        pgas.barrier_all()
        calls = [functools.partial(call, i) for i in range(iters)]
        if options.cudagraph:
            seconds = [together(stream, calls, graph=True) / iters]
        else:
            pgas.sync_all(stream=stream)
            seconds = _each(stream, [functools.partial(each, stream) for each in calls])
        pgas.barrier_all()
        fault = fault or buffers.find_fault(iters)
    least, most = (None, None) if options.cudagraph else (min(seconds), max(seconds))
    return Measured(sum(seconds) / len(seconds), least, most, fault)


def _rehearse(buffers: Buffers, call: Callable[[int], None], stream: Any, iters: int) -> str | None:
    """Perform iterations, check the destination after each, and return the first fault. Members synchronize before they overwrite it."""
    faults = []
    buffers.clear(1)
    pgas.barrier_all()
    for i in range(iters):
        call(i)
        pgas.synchronize(stream)
        faults.append(buffers.find_fault(i + 1))
        pgas.barrier_all()
    return next((f"in the warm-up: {fault}" for fault in faults if fault is not None), None)


def _of_messages(name: str, collective: str, defaults: Defaults) -> CollTest:
    moves = COLLECTIVES[collective]

    def tables(options: Options) -> Iterator[tuple[str, list[Case]]]:
        for rows in messages(moves, options, pgas.n_pes(), ("block",)):
            yield name, [_case(message, options) for message in rows]

    small = replace(defaults, min_size=8, max_size=1 << 10, step=16, iters=3, warmup_iters=2)
    return CollTest(name, f"Latency of {collective} on a stream, every byte checked.", tables, defaults, small, ("block",))


def _case(message: CollectiveMessage, options: Options) -> Case:
    op, bus = message.op or None, message.collective.bus(message.npes)
    return Case(message.size, None, None, None, functools.partial(_measure, message, options), message.count, message.dtype.name, op, bus)


# Barriers -------------------------------------------------------------------------------------------------------------------------


def _measure_meeting(call: Callable[[Any], None], options: Options) -> Measured:
    """Time barriers. In the warm-up, each PE puts the iteration number to its neighbor, and checks its own cell after the barrier."""
    stream, right, fault = cuda.stream(), (pgas.my_pe() + 1) % pgas.n_pes(), None
    cell = pgas.zeros(1, np.int64)
    for turn in range(1, options.warmup_iters + 1):
        pgas.p(cell, 0, turn, right, stream=stream)
        pgas.quiet(stream=stream)
        call(stream)
        pgas.synchronize(stream)
        if (found := int(cell.copy_to_host()[0])) not in (turn, turn + 1):
            fault = f"a call returned before the neighbor made its own, in the warm-up: iteration {found} instead of {turn}"
    seconds = together(stream, [call] * options.iters, graph=options.cudagraph)
    pgas.free(cell)
    return Measured(seconds / options.iters, fault=fault)


def _of_meetings(name: str, function: Callable[..., None], *team: Any) -> CollTest:
    def call(stream: Any) -> None:
        function(*team, stream=stream)

    def tables(options: Options) -> Iterator[tuple[str, list[Case]]]:
        yield name, [Case(1, None, None, None, functools.partial(_measure_meeting, call, options))]

    fixed = (*_FIXED, "min_size", "max_size", "step", "datatype")
    defaults = Defaults("int", iters=1000, warmup_iters=10, ctas=1, captures=True, fixed=fixed)
    return CollTest(
        name, f"Latency of {function.__name__} on a stream.", tables, defaults, replace(defaults, iters=3, warmup_iters=2), ("block",)
    )


# The tests ------------------------------------------------------------------------------------------------------------------------


_FIXED = (*OF_COLLECTIVES, "ctas", "threads_per_cta")
_MOVES = Defaults("int", 1, 4 << 20, iters=100, warmup_iters=10, ctas=1, captures=True, fixed=_FIXED)

TESTS = {
    test.name: test
    for test in (
        _of_messages("alltoall_on_stream", "alltoall", _MOVES),
        _of_messages("broadcast_on_stream", "broadcast", _MOVES),
        _of_messages("fcollect_on_stream", "fcollect", replace(_MOVES, iters=1000)),
        _of_messages("reduction_on_stream", "reduce", replace(_MOVES, reduce_op="sum")),
        _of_messages("reducescatter_on_stream", "reducescatter", replace(_MOVES, reduce_op="sum")),
        _of_meetings("barrier_on_stream", pgas.barrier, pgas.TEAM_WORLD),
        _of_meetings("barrier_all_on_stream", pgas.barrier_all),
        _of_meetings("sync_on_stream", pgas.team_sync, pgas.TEAM_WORLD),
        _of_meetings("sync_all_on_stream", pgas.sync_all),
    )
}


def main() -> int:
    """Run the test named by the program's name or otherwise by its first argument."""
    return run_named(TESTS)


if __name__ == "__main__":
    sys.exit(main())
