"""Division of the bytes of one row into messages: element type, CTAs, and parts. This is pure arithmetic and does not call pgas."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: Number of threads of a warp.
WARP = 32

#: NVSHMEM's names of element types. The tests only move bits, so that bfloat16 is uint16.
DATATYPES: dict[str, str] = {
    "char": "int8", "schar": "int8", "int8": "int8", "uchar": "uint8", "uint8": "uint8",
    "short": "int16", "int16": "int16", "ushort": "uint16", "uint16": "uint16",
    "half": "float16", "fp16": "float16", "bf16": "uint16", "bfloat16": "uint16",
    "int": "int32", "int32": "int32", "uint": "uint32", "uint32": "uint32", "float": "float32",
    "long": "int64", "longlong": "int64", "int64": "int64", "ptrdiff": "int64",
    "ulong": "uint64", "ulonglong": "uint64", "uint64": "uint64", "size": "uint64", "double": "float64",
}  # fmt: skip

#: NVSHMEM's names of atomic operations (-a).
ATOMIC_OPS = (
    "inc", "add", "and", "or", "xor", "set", "swap", "compare_swap",
    "fetch", "fetch_inc", "fetch_add", "fetch_and", "fetch_or", "fetch_xor",
)  # fmt: skip

#: NVSHMEM's names of operations of reductions (-o), in the order of its tables.
REDUCE_OPS = ("sum", "prod", "and", "or", "xor", "min", "max")


@dataclass(frozen=True)
class Workload:
    """The work of one sending PE in each iteration of one row.

    Attributes:
        size: number of bytes sent.
        dtype: element type; if the requested one does not divide size, the widest that does.
        nelems: number of elements sent, size / itemsize.
        stride: distance between neighboring elements, in elements; 1 is contiguous.
        scope: threads that call the operation together: thread, warp, or block.
        ctas: number of CTAs that have something to send; no others are launched.
        threads: number of threads per CTA.
        messages: number of calls of the operation.
        message_bytes: number of bytes of the largest message.
        coalesced: whether the threads of a warp send to neighboring locations; None for calls that send several elements.
    """

    size: int
    dtype: np.dtype
    nelems: int
    stride: int
    scope: str
    ctas: int
    threads: int
    messages: int
    message_bytes: int
    coalesced: bool | None

    @property
    def span(self) -> int:
        """Number of elements from the first to the last one sent, including the gaps of a stride."""
        return (self.nelems - 1) * self.stride + 1


def element_type(size: int, wanted: str) -> np.dtype:
    """Return the dtype named wanted if it divides size, otherwise the widest unsigned integer that does.

    Therefore, every byte of every size is sent. NVSHMEM sends nothing for 4 bytes of doubles, but prints a rate.
    """
    dtype = np.dtype(DATATYPES[wanted])
    if size % dtype.itemsize == 0:
        return dtype
    return np.dtype(next(f"u{itemsize}" for itemsize in (4, 2, 1) if size % itemsize == 0))


def share(worker, workers, nelems):  # type: ignore[no-untyped-def]  # It is also compiled as device code.
    """Return a worker's contiguous part: first element and end. Parts differ by at most one element."""
    each = nelems // workers
    extra = nelems - each * workers
    first = worker * each + min(worker, extra)
    return first, first + each + (1 if worker < extra else 0)


def put_workload(size: int, datatype: str, scope: str, ctas: int, threads: int) -> Workload:
    """Divide a row of a put test: every CTA (scope block), warp, or thread puts one contiguous part of the message.

    If there are fewer elements than workers, each element has a worker, and CTAs without elements are not launched.
    """
    dtype = element_type(size, datatype)
    nelems = size // dtype.itemsize
    workers_per_cta = {"block": 1, "warp": threads // WARP, "thread": threads}[scope]
    ctas = min(ctas, -(-nelems // workers_per_cta))
    messages = min(ctas * workers_per_cta, nelems)
    largest = -(-nelems // (ctas * workers_per_cta))
    return Workload(size, dtype, nelems, 1, scope, ctas, threads, messages, largest * dtype.itemsize, None)


def p_workload(size: int, datatype: str, stride: int, ctas: int, threads: int) -> Workload:
    """Divide a row of a p test: thread t of n sends elements t, t + n, t + 2n, ..., each as one message."""
    dtype = element_type(size, datatype)
    nelems = size // dtype.itemsize
    ctas = min(ctas, -(-nelems // threads))
    return Workload(size, dtype, nelems, stride, "thread", ctas, threads, nelems, dtype.itemsize, stride == 1)


def latency_workload(size: int, datatype: str, scope: str, threads: int) -> Workload:
    """Return the workload of one message, sent with one call by a thread, a warp, or a CTA of that many threads."""
    return put_workload(size, datatype, scope, 1, {"block": threads, "warp": WARP, "thread": 1}[scope])


def rounds_of_warps(work: Workload) -> Iterator[tuple[int, int]]:
    """Yield (rounds, lanes) for the warps of a p workload: in that many rounds, that many lanes have an element each."""
    grid = work.ctas * work.threads
    for start in range(0, work.threads, WARP):
        lanes = min(WARP, work.threads - start)
        for cta in range(work.ctas):
            rounds, rest = divmod(max(work.nelems - cta * work.threads - start, 0), grid)
            yield rounds, lanes
            yield 1, min(lanes, rest)
