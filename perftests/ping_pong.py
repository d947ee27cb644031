"""Ping-pong: PE 0 sends a message, and PE 1 waits for it and sends one back. The tests differ in how they send.

A flag on each PE counts the iterations, so that nothing is reset: a PE waits until its flag equals the number of the iteration, and PE 0
cannot be an iteration ahead. The figure is the whole round trip, like NVSHMEM's.

The warm-up is checked: before each iteration, both PEs write its number into their source, and after the flag has arrived they check that
every element of the destination has it. The timed iterations move one random payload, which is checked at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness.bulk import message_workload, scope_syncs
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults, Options
from pgas.perftests.harness.pair import Pattern, PerfTest
from pgas.perftests.harness.payload import WrongByte
from pgas.perftests.harness.report import LATENCY
from pgas.perftests.harness.transfer import Transfer
from pgas.perftests.harness.workload import Workload

#: Number of WQEs of a SIGNAL_SET: a masked compare-and-swap, and the NOP that completes it. An atomic increment is one WQE.
SIGNAL_WQES = 2

#: Number of bytes of a flag.
FLAG = 8

#: Command-line flags that tests without a payload do not have.
OF_A_PAYLOAD = ("min_size", "max_size", "step", "datatype", "threads_per_cta")


def kernel(send: Any, scope: str) -> Any:
    """Make the kernel of a ping-pong.

    send: device function ``send(dest, source, flag, turn, pe)``, called by all threads of the CTA, which moves source to dest and then sets
        the flag to turn.
    """
    sync = scope_syncs[scope]

    @pgas.jit
    def ping_pong(dest: Any, source: Any, wrong: Any, rehearsal: int, flag: Any, start: int, turns: int, pe: int) -> None:
        rank, step = cuda.threadIdx.x, cuda.blockDim.x
        begins = pgas.my_pe() == 0
        for turn in range(start + 1, start + turns + 1):
            if rehearsal:
                sync()
                if rank == 0:
                    pgas.quiet()
                sync()
                for i in range(rank, source.size, step):
                    source[i] = (turn + i) & 0x7F
                sync()
            if begins:
                send(dest, source, flag, turn, pe)
            if rank == 0:
                pgas.wait_until(flag, 0, pgas.EQ, turn)
            sync()
            if rehearsal:
                for i in range(rank, source.size, step):
                    if dest[i] != source[i]:
                        cuda.atomic.add(wrong, 0, 1)
                sync()
            if not begins:
                send(dest, source, flag, turn, pe)

    return ping_pong


class _Rally(Transfer):
    """A payload that is sent back and forth, or none (carries=False)."""

    def __init__(self, work: Workload, *, carries: bool) -> None:
        super().__init__(work)
        self._carries = carries
        self._wrong = pgas.zeros(1, np.int64)

    def arguments(self, *, rehearsal: bool) -> tuple[Any, ...]:
        return *super().arguments(rehearsal=rehearsal), self._wrong, int(rehearsal and self._carries)

    def find_fault(self, seed: int, peer: int, sent: int, received: int) -> WrongByte | str | None:
        if wrong := int(self._wrong.copy_to_host()[0]):
            return f"in the warm-up, {wrong} elements did not have the value of their iteration when its flag had arrived"
        return super().find_fault(seed, peer, sent, received if self._carries else 0)

    def free(self) -> None:
        pgas.free(self._wrong)
        super().free()


@cuda.jit(device=True)
def signal(flag: Any, turn: int, pe: int) -> None:
    """Set the flag."""
    pgas.signal_op(flag, 0, turn, pgas.SIGNAL_SET, pe)


@cuda.jit(device=True)
def increase(flag: Any, turn: int, pe: int) -> None:
    """Add 1 to the flag with an atomic."""
    pgas.atomic_inc(flag, 0, pe)


def flag_only(notify: Any) -> Any:
    """Make a send() without a payload."""

    @cuda.jit(device=True)
    def send(dest: Any, source: Any, flag: Any, turn: int, pe: int) -> None:
        notify(flag, turn, pe)

    return send


def payload_then_flag(call: Any, notify: Any) -> Any:
    """Make a send() of ``call(dest, source, pe)``, a fence, and the flag.

    After call, the first thread's fence must cover the work of the other threads.
    """

    @cuda.jit(device=True)
    def send(dest: Any, source: Any, flag: Any, turn: int, pe: int) -> None:
        call(dest, source, pe)
        if cuda.threadIdx.x == 0:
            pgas.fence()
            notify(flag, turn, pe)

    return send


def perf_test(
    name: str,
    what: str,
    kernels: Mapping[str, Any],
    defaults: Defaults,
    simulator_defaults: Defaults,
    workload: Callable[[int, Options], Workload],
    wqes: Callable[[Workload, bool], tuple[int, int]],
) -> PerfTest:
    """Make a test whose messages carry a payload.

    Args:
        name: NVSHMEM's name.
        what: text that describes how a message is sent.
        kernels: kernels by scope, the default first.
        defaults: values of missing flags, like NVSHMEM's.
        simulator_defaults: smaller defaults, for the simulator.
        workload: function that divides one size.
        wqes: function that returns the minimum and maximum number of WQEs of a message, including its flag.
    """
    return PerfTest(
        name=name,
        description=f"Round trip of {what}; every byte and turn checked.",
        kernels=kernels,
        workload=workload,
        wqes=wqes,
        measures=LATENCY,
        unit=f"the whole round trip, PE 0 to PE 1 and back, by {what}",
        pattern=Pattern.PING_PONG,
        buffers=lambda work, options: _Rally(work, carries=True),
        signals=FLAG,
        defaults=defaults,
        simulator_defaults=simulator_defaults,
    )


def flag_test(name: str, what: str, notify: Any, wqes: int) -> PerfTest:
    """Make a test of flags without a payload; wqes: number of WQEs of one."""
    defaults = Defaults("uint64", FLAG, FLAG, threads_per_cta=1, fixed=(*OF_ONE_CTA, *OF_A_PAYLOAD))
    carrying = perf_test(
        name,
        what,
        {"thread": kernel(flag_only(notify), "thread")},
        defaults,
        defaults,
        message_workload,
        lambda work, coalesces: (wqes, wqes),
    )
    return replace(carrying, buffers=lambda work, options: _Rally(work, carries=False), signals=0)


def with_flag(wqes: Callable[[Workload, bool], tuple[int, int]], more: int) -> Callable[[Workload, bool], tuple[int, int]]:
    """Return a function like wqes() that adds the WQEs of a flag."""

    def both(work: Workload, coalesces: bool) -> tuple[int, int]:
        fewest, most = wqes(work, coalesces)
        return fewest + more, most + more

    return both
