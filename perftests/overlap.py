"""Overlap of communication and a library's matrix products: all-gather + matmul, and matmul + reduce-scatter, in bfloat16.

    mpirun -n 4 python -m pgas.perftests.overlap --m 8192 --n 28672 --k 8192 --chunks 4

These are the two products of a tensor-parallel layer on P PEs. In the first, a PE has M / P rows of A and N / P columns of B, and needs all
of A (M x K). In the second, a PE has N / P columns of A and N / P rows of B; the products (M x K) of all PEs are added, and each PE keeps
M / P rows of the sum. cuBLAS multiplies, through PyTorch; in the simulator NumPy does.

"overlapped, collectives": a chunk has the same number of rows of every PE. fcollect gathers it, or reducescatter adds it, on a stream of
its own, while cuBLAS multiplies the chunk before it or behind it. Only the first gather and the last sum have no product to overlap with.
Rows that are gathered or added are therefore in the order (chunk, PE, row). The rows of A in the second pattern are put into this order
before the timing. In a layer, the first product returns its rows in this order, and the second can take them so.

A collective occupies as many SMs as it has blocks, which the job's table determines; ``PGAS_HOST_BLOCKS=reducescatter=0:16,fcollect=0:16``
lends fewer SMs than the table. A product that starts first may occupy all SMs until it ends. Therefore, collectives have a stream of higher
priority, and a product starts no earlier than the collective that overlaps with it can.

"overlapped, tiles", for all-gather: a kernel of ``--blocks`` blocks sends this PE's part of each chunk, a tile, with a signal per block.
Step s sends to the PE s places to the right, so that each PE sends and receives equally much. Meanwhile, cuBLAS multiplies this PE's own
rows, and then each tile after a kernel of one block has waited for its signals. The first product waits until all blocks of the sending
kernel run.

"overlapped, copies", for all-gather: the host puts each tile with a signal, on the stream of the communication. The GPU's copy engine moves
the tiles and takes no SMs, because this program sets ``PGAS_COPY_ENGINE_BYTES`` to 1M unless the environment does.

Gathered rows alternate between two buffers: a PE that has received all chunks of a turn knows that all others have finished the turn
before. The sums need only one, because no later work reads them here.

Before a variant is timed, two turns of it start with buffers full of wrong values, and the results are compared with products of float32
that need no communication, because every PE can compute every operand. Times are those of the slowest PE. All variants are measured in
turn, ``--rounds`` times, and a row has the median. The power of a GPU is limited, so that products that follow much other work take up to
20% longer. "host" is the time in which the host queues a turn; it must be shorter, because otherwise the GPU waits for the host.
``--cudagraph`` captures two turns.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda

from pgas.base import config
from pgas.base.arguments import Parser, one_of, output_file, within
from pgas.base.output import outlive_reader
from pgas.perftests.harness.options import TRANSPORTS
from pgas.perftests.harness.peers import device_of_torch, nccl_group
from pgas.perftests.harness.plot import draw, lacking
from pgas.perftests.harness.report import commit, now, place, rows_in_lines, said

__all__ = ["main"]

#: Number of threads of a block that sends, and that waits.
_THREADS, _WAITING = (1024, 128) if not pgas.SIMULATOR else (32, 32)

#: A value that no result has, in buffers before a turn that is checked.
_WRONG = 1e30

#: Names of the variants that the last lines compare.
_OVERLAPPED = "overlapped, collectives", "overlapped, tiles", "overlapped, copies"
_IN_SEQUENCE = "in sequence, NCCL", "in sequence, pgas"


# Kernels --------------------------------------------------------------------------------------------------------------------------


@pgas.jit
def _begin(turn):  # type: ignore[no-untyped-def]
    turn[0] += 1


@pgas.jit(launch_bounds=_THREADS)
def _send_tiles(gathered, a, arrived, turn):  # type: ignore[no-untyped-def]
    """Send this PE's rows of A to all others, tile by tile. Each block sends a part of a tile, and its signal.

    This PE's own signals tell its other stream that the blocks run, because no tile arrives with them.
    """
    me, n, chunks, block, blocks = pgas.my_pe(), pgas.n_pes(), arrived.shape[1], cuda.blockIdx.x, cuda.gridDim.x
    rows = a.shape[0] // chunks
    if cuda.threadIdx.x == 0:
        pgas.signal_op(arrived, (me, 0, block), turn[0], pgas.SIGNAL_SET, me)
    for step in range(1, n):
        for chunk in range(chunks):
            first, last = chunk * rows + rows * block // blocks, chunk * rows + rows * (block + 1) // blocks
            dest, word = gathered[me * a.shape[0] + first : me * a.shape[0] + last], (me, chunk, block)
            pgas.put_signal_block(dest, a[first:last], arrived, word, turn[0], pgas.SIGNAL_SET, (me + step) % n)


@pgas.jit
def _await(arrived, pe, chunk, turn):  # type: ignore[no-untyped-def]
    """Wait for all signals of a tile. Kernels behind this one in the stream may read it."""
    for block in range(cuda.threadIdx.x, arrived.shape[2], cuda.blockDim.x):
        pgas.signal_wait_until(arrived, (pe, chunk, block), pgas.GE, turn[0])


# Products and streams -------------------------------------------------------------------------------------------------------------


class _NumPy:
    """Products by NumPy, for the simulator, which has no streams."""

    products = communication = 0
    name = "NumPy"

    def native(self, array: Any) -> Any:
        """Return an array on the heap as one of the library, without a copy."""
        return np.asarray(array)

    def empty(self, *shape: int) -> Any:
        """Return an array outside the heap."""
        return np.empty(shape, bfloat16)

    def normals(self, shape: tuple[int, int], seed: int) -> Any:
        """Return random numbers that every PE can compute."""
        return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(bfloat16)

    def fill(self, array: Any, value: Any) -> None:
        """Set all elements."""
        array[...] = value

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Store A B in out, in the order of the stream of the products."""
        out[...] = self.exact(a, b).astype(bfloat16)

    def exact(self, a: Any, b: Any) -> Any:
        """Return A B in float32."""
        return a.astype(np.float32) @ b.astype(np.float32)

    def difference(self, found: Any, expected: Any) -> tuple[float, float]:
        """Return the largest difference of elements, and the largest element that was expected."""
        expected = expected.astype(np.float32)
        return float(np.abs(found.astype(np.float32) - expected).max()), float(np.abs(expected).max())

    def follow(self, later: Any, earlier: Any) -> None:
        """Let later work of a stream wait for the work that is in another one now."""

    def queue(self, turns: Sequence[Callable[[], None]]) -> None:
        """Queue work on the stream of the products."""
        for turn in turns:
            turn()

    def seconds(self, turns: Sequence[Callable[[], None]], iters: int, graph: bool) -> tuple[float, float]:
        """Return the seconds of a turn, and those in which the host queues it. Collective."""
        pgas.barrier_all()
        started = time.perf_counter()
        for i in range(iters):
            turns[i % 2]()
        seconds = (time.perf_counter() - started) / iters
        return seconds, seconds


class _Torch:
    """Products by cuBLAS through PyTorch."""

    name = "cuBLAS (PyTorch)"

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")  # which the simulator does not need
        self.device = device_of_torch()
        # Blocks that communicate are scheduled before the blocks of products that have not started.
        self.products, self.communication = self._torch.cuda.Stream(), self._torch.cuda.Stream(priority=-1)

    def native(self, array: Any) -> Any:
        return self._torch.from_dlpack(array)

    def empty(self, *shape: int) -> Any:
        return self._torch.empty(shape, dtype=self._torch.bfloat16, device=self.device)

    def normals(self, shape: tuple[int, int], seed: int) -> Any:
        generator = self._torch.Generator(self.device).manual_seed(seed)
        return self._torch.randn(shape, generator=generator, dtype=self._torch.bfloat16, device=self.device)

    def fill(self, array: Any, value: Any) -> None:
        if isinstance(value, float):
            array.fill_(value)
        else:
            array.copy_(value)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._torch.mm(a, b, out=out)

    def exact(self, a: Any, b: Any) -> Any:
        return a.float() @ b.float()  # PyTorch does not use TF32 unless it is told to

    def difference(self, found: Any, expected: Any) -> tuple[float, float]:
        expected = expected.float()
        return float((found.float() - expected).abs().max()), float(expected.abs().max())

    def follow(self, later: Any, earlier: Any) -> None:
        later.wait_stream(earlier)

    def queue(self, turns: Sequence[Callable[[], None]]) -> None:
        self._torch.cuda.synchronize()  # what the default stream does is complete
        with self._torch.cuda.stream(self.products):
            for turn in turns:
                turn()

    def seconds(self, turns: Sequence[Callable[[], None]], iters: int, graph: bool) -> tuple[float, float]:
        cuda_of = self._torch.cuda
        start, stop = cuda_of.Event(enable_timing=True), cuda_of.Event(enable_timing=True)
        if graph:
            both = cuda_of.CUDAGraph()
            with cuda_of.graph(both, stream=self.products, capture_error_mode="thread_local"):
                for turn in turns:
                    turn()
            turns, iters = [both.replay], (iters + 1) // 2
        with cuda_of.stream(self.products):
            pgas.barrier_all()
            pgas.sync_all(stream=self.products)
            start.record()
            began = time.perf_counter()
            for i in range(iters):
                turns[i % len(turns)]()
            queued = time.perf_counter() - began
            stop.record()
        pgas.synchronize(self.products)
        count = iters * 2 // len(turns)
        return start.elapsed_time(stop) / 1e3 / count, queued / count


# What is measured -----------------------------------------------------------------------------------------------------------------


@dataclass
class _Variant:
    """One row of the table."""

    name: str
    turn: Callable[[int], None]  #: Queues a turn, with the first or the second of alternating buffers.
    results: list[tuple[Any, Any, bool]]  #: Arrays, what they must contain after two turns, and whether exactly.
    multiplies: bool = True  #: Whether it is more than the communication.
    prepare: Callable[[], None] = field(default=lambda: None)  #: Provides operands after the buffers were set to wrong values.


class _Pattern:
    """One of the two patterns: its operands, and its variants."""

    title = ""
    variants: list[_Variant]

    def __init__(self, options: argparse.Namespace, library: Any) -> None:
        self.me, self.n, self.library, self.chunks = pgas.my_pe(), pgas.n_pes(), library, options.chunks
        self.m, self.k, self.part, self.rows = options.m, options.k, options.n // self.n, options.m // self.n
        self._buffers: list[Any] = []

    def rows_of(self, pe: int) -> slice:
        """Return the rows that a PE owns."""
        return slice(pe * self.rows, (pe + 1) * self.rows)

    def tile(self, pe: int, chunk: int) -> slice:
        """Return the rows of a chunk that a PE owns."""
        size, first = self.rows // self.chunks, pe * self.rows
        return slice(first + chunk * size, first + (chunk + 1) * size)

    def chunk(self, chunk: int) -> slice:
        """Return the rows of a chunk in arrays whose rows are ordered by chunk."""
        size = self.m // self.chunks
        return slice(chunk * size, (chunk + 1) * size)

    def by_chunk(self, array: Any) -> Any:
        """Return an array with its rows in the order (chunk, PE, row) instead of (PE, chunk, row)."""
        return array.reshape(self.n, self.chunks, -1, array.shape[1]).swapaxes(0, 1).reshape(array.shape)

    def multiply_chunk(self, chunk: int, a: Any, b: Any, out: Any) -> None:
        """Multiply the rows of a chunk. The rows of a and out are ordered by chunk."""
        self.library.multiply(a[self.chunk(chunk)], b, out[self.chunk(chunk)])

    def multiply_chunks(self, a: Any, b: Any, out: Any) -> None:
        """Multiply chunk by chunk."""
        for chunk in range(self.chunks):
            self.multiply_chunk(chunk, a, b, out)

    def communication_begins(self) -> None:
        """Let the stream of the communication wait for the products that have been queued."""
        self.library.follow(self.library.communication, self.library.products)

    def products_follow(self) -> None:
        """Let the stream of the products wait for the communication that has been queued."""
        self.library.follow(self.library.products, self.library.communication)

    def buffer(self, array: Any) -> Any:
        """Keep an array that is set to wrong values before a check, and return it."""
        self._buffers.append(array)
        return array

    def clear(self) -> None:
        """Set all buffers to wrong values."""
        for array in self._buffers:
            self.library.fill(array, _WRONG)


class _AllGather(_Pattern):
    """C = A B, where the rows of A are on all PEs, and this PE has some columns of B."""

    title = "all-gather + matmul"

    def __init__(self, options: argparse.Namespace, library: Any, nccl: Any) -> None:
        super().__init__(options, library)
        me, n, m, k, rows, native = self.me, self.n, self.m, self.k, self.rows, library.native
        mine, gathered = pgas.empty((rows, k), bfloat16), pgas.empty((2, m, k), bfloat16)
        a, whole, g = native(mine), library.empty(m, k), self.buffer(native(gathered))
        for pe in range(n):
            library.fill(whole[self.rows_of(pe)], library.normals((rows, k), 2 * pe))
        library.fill(a, whole[self.rows_of(me)])
        b, c = library.normals((k, self.part), 2 * me + 1), self.buffer(library.empty(m, self.part))
        expected, ordered, multiply = library.exact(whole, b), self.by_chunk(whole), library.multiply
        right, right_by_chunk = [(c, expected, False)], [(c, self.by_chunk(expected), False)]
        gather = [pgas.fcollect.bind(pgas.TEAM_WORLD, gathered[slot], mine, stream=library.products) for slot in (0, 1)]
        gather_chunk = [
            [
                pgas.fcollect.bind(
                    pgas.TEAM_WORLD, gathered[slot][self.chunk(chunk)], mine[self.tile(0, chunk)], stream=library.communication
                )
                for chunk in range(self.chunks)
            ]
            for slot in (0, 1)
        ]
        nccl_gathered = self.buffer(library.empty(m, k)) if nccl else None

        def in_chunks(slot: int) -> None:
            self.communication_begins()
            for call in gather_chunk[slot]:
                call()
            self.products_follow()

        def overlapped(slot: int) -> None:
            self.communication_begins()
            gather_chunk[slot][0]()
            for chunk in range(self.chunks):
                self.products_follow()
                if chunk + 1 < self.chunks:
                    gather_chunk[slot][chunk + 1]()  # before the product, which could occupy all SMs
                self.multiply_chunk(chunk, g[slot], b, c)

        def in_sequence(slot: int) -> None:
            gather[slot]()
            multiply(g[slot], b, c)

        def by_nccl(slot: int) -> None:
            nccl.all_gather_into_tensor(nccl_gathered, a)

        def in_sequence_by_nccl(slot: int) -> None:
            by_nccl(slot)
            multiply(nccl_gathered, b, c)

        arrived, turn = pgas.zeros((n, self.chunks, options.blocks), np.uint64), pgas.zeros(1, np.int64)
        begin = _begin[1, 1, library.products].bind(turn)
        send = [_send_tiles[options.blocks, _THREADS, library.communication].bind(gathered[i], mine, arrived, turn) for i in (0, 1)]
        # In the order of arrival: in step s, the PE s places to the left sends to this one.
        tiles = [((me - step) % n, chunk) for step in range(1, n) for chunk in range(self.chunks)]
        wait = {tile: _await[1, _WAITING, library.products].bind(arrived, *tile, turn) for tile in [(me, 0), *tiles]}

        landed, copy_turn = pgas.zeros((n, self.chunks, 1), np.uint64), pgas.zeros(1, np.int64)
        begin_copies = _begin[1, 1, library.products].bind(copy_turn)
        put = [
            [
                pgas.put_signal.bind(
                    gathered[slot][self.tile(me, chunk)], mine[self.tile(0, chunk)], landed, (me, chunk, 0), 1, pgas.SIGNAL_ADD,
                    (me + step) % n, stream=library.communication,
                )
                for step in range(1, n)
                for chunk in range(self.chunks)
            ]
            for slot in (0, 1)
        ]  # fmt: skip
        wait_for_copy = {tile: _await[1, _WAITING, library.products].bind(landed, *tile, copy_turn) for tile in tiles}

        def begin_tiles(slot: int) -> None:
            begin()
            self.communication_begins()
            send[slot]()
            wait[me, 0]()  # until all blocks of the kernel run

        def in_tiles(slot: int) -> None:
            begin_tiles(slot)
            for tile in tiles:
                wait[tile]()
            self.products_follow()

        def multiply_tiles(operand: Any, own: Any, waits: Any = None) -> None:
            multiply(own, b, c[self.rows_of(me)])
            for tile in tiles:
                if waits:
                    waits[tile]()
                multiply(operand[self.tile(*tile)], b, c[self.tile(*tile)])

        def overlapped_tiles(slot: int) -> None:
            begin_tiles(slot)
            multiply_tiles(g[slot], a, wait)
            self.products_follow()

        def send_copies(slot: int) -> None:
            begin_copies()
            self.communication_begins()
            for call in put[slot]:
                call()

        def in_copies(slot: int) -> None:
            send_copies(slot)
            for tile in tiles:
                wait_for_copy[tile]()
            self.products_follow()

        def overlapped_copies(slot: int) -> None:
            send_copies(slot)
            multiply_tiles(g[slot], a, wait_for_copy)
            self.products_follow()

        copies, copies_by_chunk = ([(g[slot], rows_of_all, True) for slot in (0, 1)] for rows_of_all in (whole, ordered))
        sent = [(g[slot][self.tile(*tile)], whole[self.tile(*tile)], True) for slot in (0, 1) for tile in tiles]
        self.variants = [
            _Variant("communication, pgas", lambda slot: gather[slot](), copies, multiplies=False),
            _Variant("communication, pgas chunks", in_chunks, copies_by_chunk, multiplies=False),
            _Variant("communication, pgas tiles", in_tiles, sent, multiplies=False),
            _Variant("communication, pgas copies", in_copies, sent, multiplies=False),
            _Variant("matmul", lambda slot: multiply(whole, b, c), right),
            _Variant("matmul in chunks", lambda slot: self.multiply_chunks(ordered, b, c), right_by_chunk),
            _Variant("matmul in tiles", lambda slot: multiply_tiles(whole, a), right),
            _Variant(_IN_SEQUENCE[1], in_sequence, right),
            _Variant(_OVERLAPPED[0], overlapped, right_by_chunk),
            _Variant(_OVERLAPPED[1], overlapped_tiles, right),
            _Variant(_OVERLAPPED[2], overlapped_copies, right),
        ]
        if nccl:
            copied = [(nccl_gathered, whole, True)]
            self.variants.insert(0, _Variant("communication, NCCL", by_nccl, copied, multiplies=False))
            self.variants.insert(-4, _Variant(_IN_SEQUENCE[0], in_sequence_by_nccl, right))


class _ReduceScatter(_Pattern):
    """C = the sum of A B of all PEs, of which each PE keeps some rows."""

    title = "matmul + reduce-scatter"

    def __init__(self, options: argparse.Namespace, library: Any, nccl: Any) -> None:
        super().__init__(options, library)
        me, n, m, k, rows, native = self.me, self.n, self.m, self.k, self.rows, library.native
        partial, total = pgas.empty((m, k), bfloat16), pgas.empty((rows, k), bfloat16)
        product, c, mine = self.buffer(native(partial)), self.buffer(native(total)), self.rows_of(me)
        a: Any = None
        b: Any = None
        expected: Any = None
        for pe in range(n):
            its_a, its_b = library.normals((m, self.part), 2 * pe), library.normals((self.part, k), 2 * pe + 1)
            part = library.exact(its_a[mine], its_b)
            expected = part if expected is None else expected + part
            if pe == me:
                a, b = its_a, its_b
        own_product, ordered, multiply = library.exact(a, b), self.by_chunk(a), library.multiply
        right, multiplied = [(c, expected, False)], [(product, own_product, False)]
        multiplied_by_chunk = [(product, self.by_chunk(own_product), False)]
        scatter = pgas.reducescatter.bind(pgas.TEAM_WORLD, total, partial, pgas.SUM, stream=library.products)
        scatter_chunk = [
            pgas.reducescatter.bind(
                pgas.TEAM_WORLD, total[self.tile(0, chunk)], partial[self.chunk(chunk)], pgas.SUM, stream=library.communication
            )
            for chunk in range(self.chunks)
        ]
        nccl_product, nccl_total = [self.buffer(library.empty(size, k)) for size in (m, rows)] if nccl else [None, None]

        def in_chunks(slot: int) -> None:
            self.communication_begins()
            for call in scatter_chunk:
                call()
            self.products_follow()

        def overlapped(slot: int) -> None:
            for chunk in range(self.chunks):
                self.multiply_chunk(chunk, ordered, b, product)
                self.communication_begins()
                self.products_follow()  # The next product starts no earlier than this collective can.
                scatter_chunk[chunk]()
            self.products_follow()

        def in_sequence(slot: int) -> None:
            multiply(a, b, product)
            scatter()

        def by_nccl(slot: int) -> None:
            nccl.reduce_scatter_tensor(nccl_total, nccl_product)

        def in_sequence_by_nccl(slot: int) -> None:
            multiply(a, b, nccl_product)
            by_nccl(slot)

        def prepare() -> None:
            multiply(a, b, product)

        def prepare_chunks() -> None:
            multiply(ordered, b, product)

        self.variants = [
            _Variant("communication, pgas", lambda slot: scatter(), right, multiplies=False, prepare=prepare),
            _Variant("communication, pgas chunks", in_chunks, right, multiplies=False, prepare=prepare_chunks),
            _Variant("matmul", lambda slot: multiply(a, b, product), multiplied),
            _Variant("matmul in chunks", lambda slot: self.multiply_chunks(ordered, b, product), multiplied_by_chunk),
            _Variant(_IN_SEQUENCE[1], in_sequence, right),
            _Variant(_OVERLAPPED[0], overlapped, right),
        ]
        if nccl:
            summed = [(nccl_total, expected, False)]
            fill = lambda: multiply(a, b, nccl_product)  # noqa: E731
            self.variants.insert(0, _Variant("communication, NCCL", by_nccl, summed, multiplies=False, prepare=fill))
            self.variants.insert(-2, _Variant(_IN_SEQUENCE[0], in_sequence_by_nccl, summed))


def _measure(pattern: _Pattern, variant: _Variant, options: argparse.Namespace) -> dict[str, Any]:
    """Check a variant, time it, and return its row. Collective."""
    library, turns = pattern.library, [lambda: variant.turn(0), lambda: variant.turn(1)]
    pattern.clear()
    library.queue([variant.prepare])
    pgas.synchronize()
    pgas.barrier_all()
    library.queue(turns)
    pgas.synchronize()
    right = _agree(pattern, variant)
    for _ in range(options.warmup_iters // 2):
        library.queue(turns)
    pgas.synchronize()
    seconds, queued = library.seconds(turns, options.iters, options.cudagraph)
    right &= _agree(pattern, variant)
    received = (pattern.n - 1) * pattern.rows * pattern.k * bfloat16(0).nbytes
    flops = 2 * pattern.m * pattern.k * pattern.part
    times = pgas.allgather_object((seconds, queued, right))
    slowest, host = (max(each[i] for each in times) for i in (0, 1))
    row = {"pattern": pattern.title, "variant": variant.name, "us": slowest * 1e6, "host_us": host * 1e6}
    row["gbps"] = None if variant.multiplies else received / slowest / 1e9
    row["tflops"] = flops / slowest / 1e12 if variant.multiplies else None
    return row | {"validated": all(each[2] for each in times)}


def _median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of a variant's rows; it is valid if all are."""
    return sorted(rows, key=lambda row: row["us"])[len(rows) // 2] | {"validated": all(row["validated"] for row in rows)}


def _agree(pattern: _Pattern, variant: _Variant) -> bool:
    """Whether the results are right. A product may differ by the rounding of each PE's part and of each sum."""
    right = True
    for found, expected, exact in variant.results:
        difference, largest = pattern.library.difference(found, expected)
        right &= difference <= (0 if exact else (pattern.n + 2) * 2**-8 * largest)  # False for a NaN
    return right


# The command ----------------------------------------------------------------------------------------------------------------------


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("python -m pgas.perftests.overlap", description="Overlap of communication and matrix products.", allow_abbrev=False)
    few = pgas.SIMULATOR
    rows, columns, inner, iters, warmup, blocks, rounds = (48, 24, 24, 2, 0, 2, 1) if few else (8192, 28672, 8192, 50, 10, 8, 3)
    whole, sizes = within(1, 1 << 20), within(1, 1 << 20)
    parser.add_argument("--m", type=sizes, default=rows, metavar="N", help=f"rows of A, a multiple of PEs and chunks [{rows}]")
    parser.add_argument("--n", type=sizes, default=columns, metavar="N", help=f"columns of B of all PEs, a multiple of PEs [{columns}]")
    parser.add_argument("--k", type=sizes, default=inner, metavar="N", help=f"columns of A [{inner}]")
    parser.add_argument("--chunks", type=within(1, 1024), default=4, metavar="N", help="chunks of a PE's rows [4]")
    parser.add_argument("--blocks", type=within(1, 1024), default=blocks, metavar="N", help=f"blocks that send tiles [{blocks}]")
    parser.add_argument("--iters", type=whole, default=iters, metavar="N", help=f"timed turns [{iters}]")
    parser.add_argument("--warmup_iters", type=within(0, 1 << 20), default=warmup, metavar="N", help=f"turns before them [{warmup}]")
    parser.add_argument("--rounds", type=within(1, 100), default=rounds, metavar="N", help=f"measurements of each variant [{rounds}]")
    parser.add_argument("--cudagraph", action="store_true", help="capture two turns into a CUDA graph and launch that")
    parser.add_argument("--transport", type=one_of(TRANSPORTS), metavar="NAME", help=f"{', '.join(TRANSPORTS)} [pgas chooses]")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="draw the results as bars into a PNG")
    options = parser.parse_args(argv)
    if options.plot is not None and (why := lacking()) is not None:
        parser.error(why)
    if not pgas.SIMULATOR and importlib.util.find_spec("torch") is None:
        parser.error("on a GPU, PyTorch multiplies: pip install torch")
    return options  # type: ignore[no-any-return]


def main(argv: list[str] | None = None) -> int:
    """Measure, check, and print. The exit status is 1 if a result is wrong."""
    outlive_reader()
    options = _options(argv)
    if options.transport is not None:
        os.environ["PGAS_TRANSPORT"] = options.transport
    os.environ.setdefault("PGAS_COPY_ENGINE_BYTES", "1M")
    os.environ.setdefault("PGAS_SYMMETRIC_SIZE", str(max(1 << 30, 8 * options.m * options.k + (128 << 20))))
    with pgas.init() as job:
        me, n = job.my_pe, job.n_pes
        if n < 2 or options.m % (n * options.chunks) or options.n % n:
            if me == 0:
                allowed = f"{n} PEs must be at least 2, --m a multiple of {n * options.chunks} (PEs and chunks), and --n one of {n}"
                print(f"overlap: error: {allowed}", file=sys.stderr)
            return 2
        library: Any = _NumPy() if pgas.SIMULATOR else _Torch()
        nccl, why = nccl_group(job, library.empty)
        rows = []
        if me == 0:
            _print_title(options, job, library, why)
        for kind in (_AllGather, _ReduceScatter):
            pattern = kind(options, library, nccl)
            rounds = [[_measure(pattern, variant, options) for variant in pattern.variants] for _ in range(options.rounds)]
            found = [_median(each) for each in zip(*rounds, strict=True)]
            rows += found
            if me == 0:
                for row in found:
                    _print_row(row)
                _print_gain(found)
        if nccl:
            nccl.destroy_process_group()
        if me == 0:
            _write(options, rows, why, library.name)
    return int(not all(row["validated"] for row in rows))


def _print_title(options: argparse.Namespace, job: Any, library: Any, why: str) -> None:
    facts = pgas.info()
    print(
        f"# {job.n_pes} PEs on {place(facts['machine'], facts['gpu'])}; transport {facts['transport']}; products by {library.name}; {now()}"
    )
    shape = f"M {options.m}, N {options.n} (a PE: {options.n // job.n_pes}), K {options.k}, bfloat16"
    print(f"# {shape}; {options.chunks} chunks, {options.blocks} blocks send tiles{', CUDA graph' if options.cudagraph else ''}")
    if pgas.SIMULATOR:
        print("# simulator: kernels are interpreted here; these are an interpreter's times, not hardware's")
    if why:
        print(f"# NCCL was not measured: {why}")
    print(f"{'pattern':<25}{'variant':<27}{'us':>10}{'host us':>10}{'GB/s':>8}{'TFLOP/s':>9}  validated", flush=True)


def _print_row(row: dict[str, Any]) -> None:
    figures = ("-" if row[name] is None or not row["validated"] else f"{row[name]:.1f}" for name in ("us", "host_us", "gbps", "tflops"))
    cells = "".join(f"{text:>{width}}" for text, width in zip(figures, (10, 10, 8, 9), strict=True))
    print(f"{row['pattern']:<25}{row['variant']:<27}{cells}  {'yes' if row['validated'] else 'NO'}", flush=True)


def _print_gain(rows: list[dict[str, Any]]) -> None:
    """Print how much faster the overlapped forms are than both in sequence."""
    times = {row["variant"]: row["us"] for row in rows if row["validated"]}
    for form in _OVERLAPPED:
        found = [f"{times[name] / times[form]:.2f} times as fast as {name}" for name in _IN_SEQUENCE if {name, form} <= times.keys()]
        if found:
            print(said(f"# {rows[0]['pattern']}, {form}: {', '.join(found)}", pgas.SIMULATOR), flush=True)


def _write(options: argparse.Namespace, rows: list[dict[str, Any]], why: str, library: str) -> None:
    """Write the results, and draw them."""
    flags = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
    data = {"test": "overlap", "date": now(), "commit": commit(), **pgas.info(), "args": flags, "products": library, "without_nccl": why}
    data["copy_engine_bytes"] = config.read("PGAS_COPY_ENGINE_BYTES")
    if options.json:
        Path(options.json).write_text(rows_in_lines(data | {"rows": rows}) + "\n", encoding="utf-8")
    if options.plot:
        draw([data | {"rows": rows}], options.plot)


if __name__ == "__main__":
    sys.exit(main())
