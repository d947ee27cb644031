"""The data of a row of a collective's test: numbers of elements, what each PE sends, what must arrive, and the arrays on the heap.

In the collectives for which NVSHMEM's tables do so (alltoall, fcollect, reducescatter), a message has one part per PE, and its size is that
of all parts. ``--ctas k`` divides it among k blocks, each of which performs the collective on its own part and its own channel.

A PE has VARIANTS sources, which the iterations use in rotation, so that the contents that an iteration leaves in dest or in staging are
wrong for the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

import pgas
from pgas.perftests.harness import payload
from pgas.perftests.harness.options import ALL, Options
from pgas.perftests.harness.payload import GUARD_BYTES
from pgas.perftests.harness.workload import DATATYPES, REDUCE_OPS, WARP, Workload, share

#: Number of sources per PE. It is not two, because the halves of staging alternate.
VARIANTS = 3

#: Maximum number of elements of a part that NVSHMEM's tests measure, by scope.
SCOPES = {"thread": 512, "warp": 4096, "block": 1 << 62}

#: Reductions of integers only.
BITWISE = ("and", "or", "xor")

#: NumPy's functions, by NVSHMEM's names of the reductions.
_UFUNCS = {
    "sum": np.add, "prod": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
    "max": np.maximum,
}  # fmt: skip

Sources = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class NamedCollective:
    """One collective.

    Attributes:
        name: name in pgas; with _warp and _block for the other scopes.
        result: function that returns the contents of dest on PE pe, from the sources of all PEs and the operation.
        parts_of_source, parts_of_dest: whether the array has one part per PE, or a single one.
        bus: number of bytes that must cross the bus per byte of the message, by number of PEs (NVSHMEM's busbw).
        reduces: whether it takes an operation.
        width: number of numbers per element; 2 for pairs.
    """

    name: str
    result: Callable[[Sources, int, str], NDArray[Any]]
    parts_of_source: bool = False
    parts_of_dest: bool = False
    bus: Callable[[int], float] = lambda n: (n - 1) / n
    reduces: bool = False
    width: int = 1

    @property
    def scales(self) -> bool:
        """Whether the size of a message is that of one part per PE."""
        return self.parts_of_source or self.parts_of_dest


def _alltoall(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    return np.concatenate([np.split(source, len(sources))[pe] for source in sources])


def _fcollect(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    return np.concatenate(sources)


def _broadcast(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    return sources[0]


def _reduced(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    """Combine in PE order; 16-bit floats in float32, rounded once."""
    dtype = sources[0].dtype
    wide = np.float32 if dtype in (np.float16, bfloat16) else dtype
    return reduce(_UFUNCS[op], [source.astype(wide) for source in sources]).astype(dtype)


def _reducescattered(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    return np.split(_reduced(sources, pe, op), len(sources))[pe]


def _maxloc(sources: Sources, pe: int, op: str) -> NDArray[Any]:
    """Return, for each row, the pair with the largest value; among equal values the one of the first PE, which is its location."""
    pairs = np.stack(sources)
    best = np.argmax(pairs[:, :, 0], axis=0)
    return pairs[best, np.arange(pairs.shape[1])]


COLLECTIVES = {
    each.name: each
    for each in (
        NamedCollective("alltoall", _alltoall, parts_of_source=True, parts_of_dest=True),
        NamedCollective("fcollect", _fcollect, parts_of_dest=True),
        NamedCollective("broadcast", _broadcast, bus=lambda n: 1),
        NamedCollective("reduce", _reduced, bus=lambda n: 2 * (n - 1) / n, reduces=True),
        NamedCollective("reducescatter", _reducescattered, parts_of_source=True, reduces=True),
        NamedCollective("maxloc", _maxloc, bus=lambda n: 2 * (n - 1) / n, width=2),
    )
}


@dataclass(frozen=True)
class CollectiveMessage:
    """The message of one collective call by all PEs, or of one call per block.

    Attributes:
        collective: the collective.
        nelems: number of elements of a part.
        dtype: dtype of a number.
        op: NVSHMEM's name of the operation of a reduction; otherwise empty.
        scope: thread, warp, or block.
        ctas, threads: numbers of CTAs and threads of the kernel.
        npes: number of members of the team.
    """

    collective: NamedCollective
    nelems: int
    dtype: np.dtype
    op: str
    scope: str
    ctas: int
    threads: int
    npes: int

    @property
    def count(self) -> int:
        return self.nelems * (self.npes if self.collective.scales else 1)

    @property
    def size(self) -> int:
        return self.count * self.dtype.itemsize * self.collective.width

    def parts(self, array: str) -> int:
        return self.npes if getattr(self.collective, f"parts_of_{array}") else 1

    def sources(self, seed: int, variant: int) -> list[NDArray[Any]]:
        """Return the data that all PEs send."""
        n = self.nelems * self.parts("source")
        return [self._elements(np.random.default_rng([seed, self.size, pe, variant]), n, pe) for pe in range(self.npes)]

    def _elements(self, random: np.random.Generator, n: int, pe: int) -> NDArray[Any]:
        if self.collective.width == 2:
            return np.stack([random.integers(4, size=n).astype(self.dtype), np.full(n, pe, self.dtype)], axis=1)
        if self.collective.reduces and self.dtype.kind not in "iu":  # With these numbers, sums and products are exact in any order.
            numbers = random.choice([0.5, 1, 2], n) if self.op == "prod" else random.integers(-8, 9, n)
            return numbers.astype(self.dtype)
        return np.frombuffer(random.bytes(n * self.dtype.itemsize), self.dtype)

    def result(self, sources: Sources, pe: int) -> NDArray[Any]:
        """Return the expected dest of a PE: the results of all blocks, one after the other."""
        parts = self.parts("source")
        shares = (share(block, self.ctas, self.nelems) for block in range(self.ctas))
        results = [self.collective.result([s[first * parts : last * parts] for s in sources], pe, self.op) for first, last in shares]
        return np.concatenate(results).ravel()


def row_bytes(options: Options) -> int:
    """Return an upper bound of the symmetric heap that a row needs: sources, destination, and the expected contents."""
    return (2 * VARIANTS + 1) * options.max_size + 2 * GUARD_BYTES


def messages(collective: NamedCollective, options: Options, npes: int, scopes: Sequence[str]) -> Iterator[list[CollectiveMessage]]:
    """Yield the rows of each table, by type, operation, and scope.

    With ``-s all``, a scope has rows of up to SCOPES elements per block, like NVSHMEM's.
    """
    names = ("int32", "int64") if options.datatype == ALL else (options.datatype,)
    ops = REDUCE_OPS if options.reduce_op == ALL else (options.reduce_op or "",)
    for dtype in (dtype_of(name, exact=collective.reduces) for name in names):
        for op in ops if dtype.kind in "iu" else [op for op in ops if op not in BITWISE]:
            for scope in scopes if options.scope == ALL else (options.scope,):
                threads = {"thread": 1, "warp": WARP, "block": options.threads_per_cta}[scope]
                rows = []
                for nelems in _numbers(collective, options, npes, dtype):
                    ctas = min(options.ctas, nelems)
                    if options.scope != ALL or len(scopes) == 1 or nelems // ctas < SCOPES[scope]:
                        rows.append(CollectiveMessage(collective, nelems, dtype, op, scope, ctas, threads, npes))
                if rows:
                    yield rows


def dtype_of(name: str, *, exact: bool) -> np.dtype:
    """Return the NumPy dtype of NVSHMEM's type. exact: whether it must have the same numbers, not only the same bits."""
    return np.dtype(bfloat16) if exact and name in ("bf16", "bfloat16") else np.dtype(DATATYPES[name])


def _numbers(collective: NamedCollective, options: Options, npes: int, dtype: np.dtype) -> Iterator[int]:
    each = dtype.itemsize * collective.width * (npes if collective.scales else 1)
    nelems = max(1, options.min_size // each)
    while nelems <= max(1, options.max_size // each):
        yield nelems
        nelems *= options.step


class Buffers:
    """The arrays of a row: sources, a guarded destination, its expected contents, and the number of differences in the checked warm-up.

    Entering and leaving are collective. Every destination of the checked warm-up is compared in the kernel, the last of the timed
    iterations here.
    """

    def __init__(self, message: CollectiveMessage, seed: int) -> None:
        """Make the arrays, and fill all except the destination."""
        dtype, width = message.dtype, message.collective.width
        n_source, n_dest = (message.nelems * message.parts(array) for array in ("source", "dest"))
        self._n, self.pitch = n_source, -(-n_source // 16) * 16  # So that all sources have the same alignment.
        guard, numbers, words = GUARD_BYTES // dtype.itemsize, n_dest * width, np.dtype(f"u{dtype.itemsize}")
        self._work = Workload(numbers * dtype.itemsize, dtype, numbers, 1, message.scope, 1, message.threads, 1, message.size, None)
        self._arrays: list[Any] = []
        try:
            for size, kind in (
                (VARIANTS * self.pitch * width, dtype),
                (guard + numbers + guard, dtype),
                (VARIANTS * numbers, words),
                (1, np.int64),
            ):
                self._arrays.append(pgas.zeros(size, kind))
        except pgas.HeapError:
            self.__exit__()
            raise
        self.source, self._guarded, self.expected, self.wrong = self._arrays
        self.dest = self._guarded[guard : guard + numbers]
        self.words = self.dest.view(words)
        if width > 1:
            self.dest, self.source = self.dest.reshape(-1, width), self.source.reshape(-1, width)
        self._fill(message, seed)

    def _fill(self, message: CollectiveMessage, seed: int) -> None:
        me = pgas.my_pe()
        image = np.zeros((VARIANTS, *self.source[: self.pitch].shape), message.dtype)
        self._results = []
        for variant in range(VARIANTS):
            sources = message.sources(seed, variant)
            image[variant, : self._n] = sources[me]
            self._results.append(message.result(sources, me))
        self.source.copy_to_device(image.reshape(self.source.shape))
        self.expected.copy_to_device(np.concatenate(self._results).view(self.expected.dtype))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for array in reversed(self._arrays):
            pgas.free(array)

    def variant(self, iteration: int) -> Any:
        first = iteration % VARIANTS * self.pitch
        return self.source[first : first + self._n]

    def clear(self, iters: int) -> None:
        """Fill dest with values that differ from those that this many iterations leave there."""
        self._guarded.copy_to_device(payload.dest_image(self._work, self._last(iters), arrived=False))

    def find_fault(self, iters: int) -> str | None:
        """Return what is wrong in dest and its guards after this many iterations, or was wrong in the checked warm-up."""
        if wrong := int(self.wrong.copy_to_host()[0]):
            return f"{wrong} elements were wrong after their iteration, in the warm-up"
        expected = payload.dest_image(self._work, self._last(iters), arrived=True)
        fault = payload.find_fault(self._work, self._guarded.copy_to_host(), expected)
        return None if fault is None else str(fault)

    def _last(self, iters: int) -> NDArray[Any]:
        result: NDArray[Any] = self._results[(iters - 1) % VARIANTS]
        return result
