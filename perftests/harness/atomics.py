"""Atomics in perf tests: kernels, and the values that they must leave and fetch, computed by NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness import payload
from pgas.perftests.harness.grid import grid_barrier
from pgas.perftests.harness.options import Options
from pgas.perftests.harness.payload import WrongByte
from pgas.perftests.harness.transfer import Transfer
from pgas.perftests.harness.workload import ATOMIC_OPS, Workload


@dataclass(frozen=True)
class AtomicOption:
    """One value of -a.

    Attributes:
        name: NVSHMEM's name.
        perform: device function ``perform(dest, idx, value, other, pe)``. other is ~value in even iterations and value in odd ones; set,
            swap, and compare_swap store it.
        fetches: whether perform returns the old value of the element.
    """

    name: str
    perform: Any
    fetches: bool


def _operation(name: str) -> AtomicOption:
    call = getattr(pgas, f"atomic_{name}")
    fetches = name.startswith("fetch") or name in ("swap", "compare_swap")
    if name in ("inc", "fetch_inc", "fetch"):

        def perform(dest: Any, idx: Any, value: Any, other: Any, pe: int) -> Any:
            return call(dest, idx, pe)

    elif name in ("set", "swap"):

        def perform(dest: Any, idx: Any, value: Any, other: Any, pe: int) -> Any:
            return call(dest, idx, other, pe)

    elif name == "compare_swap":

        def perform(dest: Any, idx: Any, value: Any, other: Any, pe: int) -> Any:
            return call(dest, idx, ~other, other, pe)

    else:

        def perform(dest: Any, idx: Any, value: Any, other: Any, pe: int) -> Any:
            return call(dest, idx, value, pe)

    return AtomicOption(name, cuda.jit(device=True)(perform), fetches)


#: All of NVSHMEM's atomic operations, by name.
OPERATIONS = {name: _operation(name) for name in ATOMIC_OPS}


def bandwidth_kernels() -> dict[str, Any]:
    """Make a kernel for each operation: thread t of n updates elements t, t + n, ... in each iteration; quiet once at the end."""
    return {name: _fetching(operation) if operation.fetches else _posting(operation) for name, operation in OPERATIONS.items()}


def _posting(operation: AtomicOption) -> Any:
    perform = operation.perform

    @pgas.jit
    def atomic_bw(dest: Any, source: Any, fetched: Any, counter: Any, start: int, iters: int, pe: int) -> None:
        first, hop, end = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1)), np.uint64(dest.size)
        for i in range(iters):
            idx = first
            while idx < end:
                value = source[idx]
                perform(dest, idx, value, value if i & 1 else ~value, pe)
                idx += hop
            grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
        if cuda.grid(1) == 0:
            pgas.quiet()

    return atomic_bw


def _fetching(operation: AtomicOption) -> Any:
    perform = operation.perform

    @pgas.jit
    def atomic_bw(dest: Any, source: Any, fetched: Any, counter: Any, start: int, iters: int, pe: int) -> None:
        first, hop, end = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1)), np.uint64(dest.size)
        seen = np.uint64(0)
        for i in range(iters):
            idx = first
            while idx < end:
                value = source[idx]
                seen ^= np.uint64(perform(dest, idx, value, value if i & 1 else ~value, pe))
                idx += hop
            grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
        fetched[cuda.grid(1)] = seen

    return atomic_bw


def latency_kernels() -> dict[str, Any]:
    """Make a kernel of one thread for each operation. An operation that does not fetch is followed by quiet in each iteration."""
    return {name: _waiting(operation) for name, operation in OPERATIONS.items()}


def _waiting(operation: AtomicOption) -> Any:
    perform = operation.perform
    if operation.fetches:

        @pgas.jit
        def atomic_latency(dest: Any, source: Any, fetched: Any, counter: Any, start: int, iters: int, pe: int) -> None:
            seen, value, idx, last = np.uint64(0), source[0], np.uint64(0), np.uint64(dest.size - 1)
            for i in range(iters):
                got = np.uint64(perform(dest, idx, value, value if i & 1 else ~value, pe))
                seen ^= got
                idx = got & last  # It is always 0, but depends on the answer.
            fetched[0] = seen

    else:

        @pgas.jit
        def atomic_latency(dest: Any, source: Any, fetched: Any, counter: Any, start: int, iters: int, pe: int) -> None:
            value = source[0]
            for i in range(iters):
                perform(dest, 0, value, value if i & 1 else ~value, pe)
                pgas.quiet()

    return atomic_latency


def oracle(name: str, memory: Any, values: Any, iters: int) -> tuple[Any, Any]:
    """Return the memory after the iterations and, for each element, the exclusive or of its fetched values."""
    seen = np.zeros_like(memory)
    for i in range(iters):
        other = values if i & 1 else ~values
        seen ^= memory
        match name.removeprefix("fetch_"):
            case "inc":
                memory = memory + memory.dtype.type(1)
            case "add":
                memory = memory + values
            case "and":
                memory = memory & values
            case "or":
                memory = memory | values
            case "xor":
                memory = memory ^ values
            case "set" | "swap":
                memory = other
            case "compare_swap":
                memory = np.where(memory == ~other, other, memory)
    return memory, seen


def wqes(work: Workload, coalesces: bool) -> tuple[int, int]:
    """Return the minimum and maximum number of WQEs: one per operation; 8-byte ones may need a NOP after each, or one per warp."""
    return work.messages, 2 * work.messages if work.dtype.itemsize == 8 else work.messages


class Updated(Transfer):
    """Operands, the guarded elements that they update, and for each thread the exclusive or of the values that it fetched."""

    def __init__(self, work: Workload, options: Options) -> None:
        super().__init__(work)
        self._op = str(options.atomic_op)
        self._fetched = pgas.zeros(work.ctas * work.threads, np.uint64)

    def arguments(self, *, rehearsal: bool) -> tuple[Any, ...]:
        return *super().arguments(rehearsal=rehearsal), self._fetched

    def find_fault(self, seed: int, peer: int, sent: int, received: int) -> WrongByte | str | None:
        if sent and OPERATIONS[self._op].fetches:
            mine = self._elements(seed, pgas.my_pe())
            expected = np.zeros(self._fetched.size, np.uint64)
            threads = np.arange(mine.size) % expected.size
            np.bitwise_xor.at(expected, threads, oracle(self._op, _initial(mine), mine, sent)[1].astype(np.uint64))
            wrong = np.flatnonzero(self._fetched.copy_to_host() != expected)
            if wrong.size:
                return f"{wrong.size} threads fetched wrong values, the first of them thread {wrong[0]}"
        return super().find_fault(seed, peer, sent, received)

    def free(self) -> None:
        pgas.free(self._fetched)
        super().free()

    def _image(self, elements: Any, iters: int) -> Any:
        updated, _ = oracle(self._op, _initial(elements), elements, iters)
        return payload.dest_image(self._work, updated, arrived=True)


def _initial(values: Any) -> Any:
    """Return initial elements such that the first compare-and-swap succeeds on two of three, and fails on the third."""
    spoiled = np.zeros_like(values)
    spoiled[2::3] = 1
    return values ^ spoiled
