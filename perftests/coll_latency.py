"""Latency of collectives called in kernels: NVSHMEM's eight tests, with its names, flags, and tables, after a checked warm-up.

    mpirun -n 2 alltoall_latency -n 1000 -w 10 -b 8 -e 1M -f 8
    mpirun -n 2 reduction_latency -n 1000 -d int64 -o sum -s block -b 8M -e 8M --ctas 16

alltoall_latency, bcast_latency, fcollect_latency, reducescatter_latency, reduction_latency, and redmaxloc_latency move messages;
barrier_latency and sync_latency do not. One kernel loops over the iterations, one call after the other, like NVSHMEM's. Unlike NVSHMEM's,
``--ctas k`` lets k blocks call concurrently, each on its own channel and with its part of the message. Also, the PEs synchronize on the GPU
before the clock starts, so that no row includes the time between the launches of two processes.

``python -m pgas.perftests.coll_latency NAME FLAGS`` also runs one.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness import timing
from pgas.perftests.harness.bulk import scope_syncs, share
from pgas.perftests.harness.collectives import COLLECTIVES, SCOPES, Buffers, CollectiveMessage, NamedCollective, messages
from pgas.perftests.harness.options import ALL, OF_COLLECTIVES, Defaults, Options
from pgas.perftests.harness.team import Case, CollTest, Measured, run_named
from pgas.perftests.harness.workload import WARP

#: Names of the scopes in NVSHMEM's tables of reductions.
_LETTERS = {"thread": "t", "warp": "w", "block": "b"}


def _of_scope(name: str, scope: str) -> Any:
    return getattr(pgas, name if scope == "thread" else f"{name}_{scope}")


# Messages -------------------------------------------------------------------------------------------------------------------------


def _call(collective: NamedCollective, op_name: str, scope: str) -> Any:
    """Make ``call(team, dest, source, channel)``."""
    function = _of_scope(collective.name, scope)
    if collective.reduces:
        op = getattr(pgas, op_name.upper())

        @cuda.jit(device=True)
        def call(team: int, dest: Any, source: Any, channel: int) -> None:
            function(team, dest, source, op, channel)

    elif collective.name == "broadcast":

        @cuda.jit(device=True)
        def call(team: int, dest: Any, source: Any, channel: int) -> None:
            function(team, dest, source, 0, channel)

    else:

        @cuda.jit(device=True)
        def call(team: int, dest: Any, source: Any, channel: int) -> None:
            function(team, dest, source, channel)

    return call


@cuda.jit(device=True)
def _compare(words: Any, expected: Any, first: int, last: int, offset: int, wrong: Any) -> None:
    """Count the wrong words in a block's destination."""
    for i in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        if words[i] != expected[offset + i]:
            cuda.atomic.add(wrong, 0, 1)


@functools.cache
def _kernel(name: str, op: str, scope: str, threads: int) -> Any:
    """Make the kernel for blocks of ``threads`` threads. In each iteration, every block calls once, with its part of the message.

    In a checked warm-up, each block compares its whole destination; then the members synchronize, so that dest may be overwritten. The
    kernel's argument parts gives the number of parts of source, that of dest, and the number of numbers per element.
    """
    call, sync, meet = _call(COLLECTIVES[name], op, scope), scope_syncs[scope], _of_scope("team_sync", scope)

    @pgas.jit(launch_bounds=threads)
    def collective(
        team: int,
        dest: Any,
        source: Any,
        pitch: int,
        nelems: int,
        parts: Any,
        words: Any,
        expected: Any,
        wrong: Any,
        rehearsal: int,
        iters: int,
    ) -> None:
        channel = cuda.blockIdx.x
        first, last = share(channel, cuda.gridDim.x, nelems)
        begin, end, to, until = first * parts[0], last * parts[0], first * parts[1], last * parts[1]
        a, b, c = source[begin:end], source[pitch + begin : pitch + end], source[2 * pitch + begin : 2 * pitch + end]
        mine, offset = dest[to:until], 0
        for _ in range(iters):
            call(team, mine, a, channel)
            a, b, c = b, c, a
            if rehearsal:
                sync()
                _compare(words, expected, to * parts[2], until * parts[2], offset, wrong)
                offset = offset + words.size if offset < 2 * words.size else 0
                cuda.threadfence_system()
                sync()
                meet(team, channel)

    return collective


def _measure(message: CollectiveMessage, options: Options) -> Measured:
    kernel, iters = _kernel(message.collective.name, message.op, message.scope, message.threads), options.iters
    parts = message.parts("source"), message.parts("dest"), message.collective.width
    with Buffers(message, options.seed) as buffers:

        def arguments(iters: int, *, rehearsal: bool) -> tuple[Any, ...]:
            about = buffers.dest, buffers.source, buffers.pitch, message.nelems, parts, buffers.words, buffers.expected, buffers.wrong
            return (pgas.TEAM_WORLD, *about, int(rehearsal), iters)

        pgas.barrier_all()
        pgas.launch(kernel, message.ctas, message.threads, arguments(options.warmup_iters, rehearsal=True))
        pgas.barrier_all()
        buffers.clear(iters)
        pgas.barrier_all()
        seconds = timing.kernel_seconds(kernel, message.ctas, message.threads, arguments(iters, rehearsal=False), together=True)
        pgas.barrier_all()
        return Measured(seconds / iters, fault=buffers.find_fault(iters))


def _of_messages(
    name: str,
    what: str,
    table: str,
    collective: str,
    defaults: Defaults,
    simulator_defaults: Defaults,
    scopes: Sequence[str] = tuple(SCOPES),
) -> CollTest:
    """Make the test of a collective that moves messages. scopes: scopes that NVSHMEM measures."""
    moves = COLLECTIVES[collective]

    def tables(options: Options) -> Iterator[tuple[str, list[Case]]]:
        for rows in messages(moves, options, pgas.n_pes(), scopes):
            yield table, [_case(message, options) for message in rows]

    of_test = ("all", *scopes) if len(scopes) > 1 else scopes
    return CollTest(name, f"Latency of {what}, every byte checked.", tables, defaults, simulator_defaults, of_test)


def _case(message: CollectiveMessage, options: Options) -> Case:
    """Return NVSHMEM's name of a row."""
    moves = message.collective
    pairs, reduces = moves.width > 1, moves.reduces or moves.width > 1
    return Case(
        size=message.size,
        scope=_LETTERS[message.scope] if reduces else message.scope,
        ctas=message.ctas,
        threads=message.threads,
        measure=functools.partial(_measure, message, options),
        count=message.count,
        type="double2" if pairs else message.dtype.name if reduces else f"{8 * message.dtype.itemsize}-bit",
        redop="maxloc" if pairs else message.op if reduces else None,
        bus=moves.bus(message.npes),
    )


# Barriers -------------------------------------------------------------------------------------------------------------------------


def _without_team(function: Any) -> Any:
    @cuda.jit(device=True)
    def call(team: int, channel: int) -> None:
        function()

    return call


@functools.cache
def _meeting_kernel(name: str, scope: str) -> Any:
    """Make the kernel in which every block calls once in each iteration.

    In a checked warm-up, each PE puts the number of the iteration into a cell of its right neighbor before the call. After the call, its
    own cell has that number, or the next one if the left neighbor is one iteration ahead. A sync does not complete operations, so quiet
    comes before it.
    """
    function, sync, completes = _of_scope(name, scope), scope_syncs[scope], name.startswith("barrier")
    call = _without_team(function) if name.endswith("_all") else function

    @pgas.jit
    def meeting(team: int, cells: Any, start: int, wrong: Any, rehearsal: int, iters: int) -> None:
        channel, right = cuda.blockIdx.x, (pgas.my_pe() + 1) % pgas.n_pes()
        for turn in range(start + 1, start + iters + 1):
            if rehearsal:
                if cuda.threadIdx.x == 0:
                    pgas.p(cells, channel, turn, right)
                    if not completes:
                        pgas.quiet()
                sync()
            call(team, channel)
            if rehearsal:
                found = cells[channel]
                if found != turn and found != turn + 1:
                    cuda.atomic.add(wrong, 0, 1)

    return meeting


def _measure_meeting(name: str, scope: str, ctas: int, threads: int, options: Options) -> Measured:
    kernel, iters = _meeting_kernel(name, scope), options.iters
    cells, wrong = pgas.zeros(ctas, np.int64), pgas.zeros(1, np.int64)
    try:
        pgas.barrier_all()
        pgas.launch(kernel, ctas, threads, (pgas.TEAM_WORLD, cells, 0, wrong, 1, options.warmup_iters))
        pgas.barrier_all()
        seconds = timing.kernel_seconds(kernel, ctas, threads, (pgas.TEAM_WORLD, cells, 0, wrong, 0, iters), together=True)
        pgas.barrier_all()
        count = int(wrong.copy_to_host()[0])
    finally:
        pgas.free(wrong)
        pgas.free(cells)
    return Measured(seconds / iters, fault=f"{count} threads continued before their neighbor came, in the warm-up" if count else None)


def _of_meetings(name: str, of_a_team: str, of_all: str) -> CollTest:
    """Make the test of a team's barrier and of that of all PEs."""

    def tables(options: Options) -> Iterator[tuple[str, list[Case]]]:
        for function in (of_a_team, of_all):
            for scope in SCOPES if options.scope == ALL else (options.scope,):
                threads = {"thread": 1, "warp": WARP, "block": options.threads_per_cta}[scope]
                ctas = 1 if function == of_all else options.ctas
                measure = functools.partial(_measure_meeting, function, scope, ctas, threads, options)
                yield f"{function.replace('team_', '')}_device", [Case(options.threads_per_cta, scope, ctas, threads, measure)]

    fixed = (*OF_COLLECTIVES, "min_size", "max_size", "step", "datatype")
    defaults = Defaults("int", iters=1000, warmup_iters=10, ctas=1, fixed=fixed)
    small = replace(defaults, iters=3, warmup_iters=2, threads_per_cta=64)
    return CollTest(name, f"Latency of {of_a_team} and {of_all} in kernels, with nothing pending.", tables, defaults, small)


# The tests ------------------------------------------------------------------------------------------------------------------------


_MOVES = Defaults(ALL, 1, 4 << 20, iters=100, warmup_iters=10, ctas=1, fixed=OF_COLLECTIVES)
_REDUCES = replace(_MOVES, iters=50, reduce_op=ALL)


def _small(defaults: Defaults) -> Defaults:
    """Return the simulator's defaults."""
    op = None if defaults.reduce_op is None else "sum"
    return replace(defaults, min_size=8, max_size=1 << 10, step=16, iters=2, warmup_iters=3, threads_per_cta=64, reduce_op=op)


TESTS = {
    test.name: test
    for test in (
        _of_messages("alltoall_latency", "alltoall in kernels", "alltoall_device", "alltoall", _MOVES, _small(_MOVES)),
        _of_messages("bcast_latency", "broadcast from PE 0 in kernels", "bcast_device", "broadcast", _MOVES, _small(_MOVES)),
        _of_messages("fcollect_latency", "fcollect in kernels", "fcollect_device", "fcollect", _MOVES, _small(_MOVES)),
        _of_messages("reduction_latency", "reduce in kernels", "device_reduction", "reduce", _REDUCES, _small(_REDUCES)),
        _of_messages(
            "reducescatter_latency",
            "reducescatter in kernels",
            "device_reducescatter",
            "reducescatter",
            replace(_REDUCES, max_size=4 << 10),
            _small(_REDUCES),
        ),
        _of_messages(
            "redmaxloc_latency",
            "maxloc of pairs of doubles in kernels",
            "device_reduction",
            "maxloc",
            Defaults("double", 16, 16, iters=50, warmup_iters=10, ctas=1, fixed=(*OF_COLLECTIVES, "datatype")),
            Defaults("double", 16, 1 << 10, 8, iters=2, warmup_iters=3, ctas=1, threads_per_cta=64, fixed=(*OF_COLLECTIVES, "datatype")),
            ("block",),
        ),
        _of_meetings("barrier_latency", "barrier", "barrier_all"),
        _of_meetings("sync_latency", "team_sync", "sync_all"),
    )
}


def main() -> int:
    """Run the test named by the program's name or otherwise by its first argument."""
    return run_named(TESTS)


if __name__ == "__main__":
    sys.exit(main())
