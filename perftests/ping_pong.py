"""Ping-pong: PE 0 sends a message, PE 1 waits for it and sends one back; what differs between the tests is how they send.

A flag on each PE counts the turns on, so that nothing is reset: a PE waits until its flag equals the number of the turn, and PE 0
cannot be a turn ahead. The figure is the whole round trip, as NVSHMEM's.

The warm-up is the rehearsal: before each turn both PEs write the turn into their source, and when the flag has come they look at every
element of the destination: it must be of this turn. The timed turns move one random payload, which is compared when they are over.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from numba import cuda

from pgas.perftests.bulk import message_workload, scope_syncs
from pgas.perftests.harness import Pattern, PerfTest
from pgas.perftests.options import OF_ONE_CTA, Defaults, Options
from pgas.perftests.payload import Fault
from pgas.perftests.report import LATENCY
from pgas.perftests.transfer import Transfer
from pgas.perftests.workload import Workload

__all__ = ["SIGNAL_WQES", "alone", "followed", "increase", "kernel", "of_a_flag", "perf_test", "signal", "with_flag"]

#: WQEs of a signal that is set: a masked compare-and-swap, and the NOP that completes it. An atomic increment is one.
SIGNAL_WQES = 2

#: Bytes of a flag.
FLAG = 8

#: Flags that tests without a payload do not have.
OF_A_FLAG = ("min_size", "max_size", "step", "datatype", "threads_per_cta")


def kernel(send: Any, scope: str) -> Any:
    """Make the kernel of a ping-pong from ``send(dest, source, flag, turn, pe)``, which all threads of the CTA call.

    send: moves source to dest and then sets, or raises, the flag to turn.
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


class _Ball(Transfer):
    """What goes to and fro; without a payload the arrays stay as they are."""

    def __init__(self, work: Workload, *, carries: bool) -> None:
        super().__init__(work)
        self._carries = carries
        self._wrong = pgas.zeros(1, np.int64)

    def arguments(self, *, rehearsal: bool) -> tuple[Any, ...]:
        return *super().arguments(rehearsal=rehearsal), self._wrong, int(rehearsal and self._carries)

    def find_fault(self, seed: int, sent: int, received: int) -> Fault | str | None:
        if wrong := int(self._wrong.copy_to_host()[0]):
            return f"{wrong} elements were not of their turn when its flag had come, in the warm-up"
        return super().find_fault(seed, sent, received if self._carries else 0)

    def free(self) -> None:
        pgas.free(self._wrong)
        super().free()


@cuda.jit(device=True)
def signal(flag: Any, turn: int, pe: int) -> None:
    """Set the flag."""
    pgas.signal_op(flag, 0, turn, pgas.SIGNAL_SET, pe)


@cuda.jit(device=True)
def increase(flag: Any, turn: int, pe: int) -> None:
    """Raise the flag by an atomic."""
    pgas.atomic_inc(flag, 0, pe)


def alone(notify: Any) -> Any:
    """Make the send() that only tells the flag."""

    @cuda.jit(device=True)
    def send(dest: Any, source: Any, flag: Any, turn: int, pe: int) -> None:
        notify(flag, turn, pe)

    return send


def followed(call: Any, notify: Any) -> Any:
    """Make the send() that moves the payload by ``call(dest, source, pe)``, and by a fence puts the flag behind it.

    When call returns, what the other threads did happens before what the first thread does next.
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
    wqes: Callable[[Workload, str], tuple[int, int]],
) -> PerfTest:
    """Make a test whose messages carry a payload.

    Args:
        name: as NVSHMEM's.
        what: how a message is sent, in words.
        kernels: by scope, the default first.
        defaults: NVSHMEM's; the simulator's are smaller.
        simulator_defaults: those.
        workload: divides one size.
        wqes: of a message, its flag included.
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
        buffers=lambda work, options: _Ball(work, carries=True),
        signals=FLAG,
        defaults=defaults,
        simulator_defaults=simulator_defaults,
    )


def of_a_flag(name: str, what: str, notify: Any, wqes: int, iters: int = 10, warmup_iters: int = 5) -> PerfTest:
    """Make a test of flags alone; wqes: of one."""
    defaults = Defaults("uint64", FLAG, FLAG, iters=iters, warmup_iters=warmup_iters, threads_per_cta=1, fixed=(*OF_ONE_CTA, *OF_A_FLAG))
    carrying = perf_test(
        name,
        what,
        {"thread": kernel(alone(notify), "thread")},
        defaults,
        replace(defaults, iters=10, warmup_iters=5),
        message_workload,
        lambda work, transport: (wqes, wqes),
    )
    return replace(carrying, buffers=lambda work, options: _Ball(work, carries=False), signals=0)


def with_flag(wqes: Callable[[Workload, str], tuple[int, int]], more: int) -> Callable[[Workload, str], tuple[int, int]]:
    """Return what counts the WQEs of a payload and its flag."""

    def both(work: Workload, transport: str) -> tuple[int, int]:
        fewest, most = wqes(work, transport)
        return fewest + more, most + more

    return both
