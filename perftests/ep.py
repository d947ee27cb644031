"""Expert-parallel dispatch and combine: the kernels of docs/gallery/ep.py, timed one by one and together, every row and every sum checked.

    mpirun -n 4 python -m pgas.perftests.ep --tokens 128,4096 --blocks 16,32,64 --dtype all --peer --json ep.json --plot ep.png

The kernels are loaded from the gallery, so that what is measured is what is shown. An installed wheel has no gallery, and therefore cannot
run this test. Each PE has the same number of tokens, each of which chooses its experts at random. The data of a row is random: bfloat16, or
8-bit elements with a float32 scale for each 128 of them. The rows that come back are random bfloat16, because experts are not measured.

A row of the table: dispatch and combine run once, and all rows that arrived and all sums are compared, bit for bit. Then, ``--iters``
times, the PEs synchronize on the stream and run one kernel between two events, first dispatch, then combine; the times are averages of the
slowest PE. ``both`` is the time of a dispatch and a combine in a loop in which only these kernels synchronize the PEs. The CPU queues
everything while a lead-in keeps the stream busy. Afterward, rows and sums are compared again. GB/s are 1e9 bytes per second that leave a PE
for others, on average.

``--peer`` also measures ``all_to_all_single`` of PyTorch over NCCL, with the permutation before it and the sum after it, on the same
routing and the same number of bytes: with a CUDA graph for a routing that the host knows ("splits known"), and for a new routing, whose
counts are exchanged ("with counts"). If NCCL cannot be measured, a line says why.
"""

import argparse
import functools
import gc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda

from pgas.api.jit import BoundLaunch
from pgas.base.arguments import Parser, one_of, output_file, within
from pgas.base.launcher import launched
from pgas.base.output import outlive_reader
from pgas.job.paths.platform import platform
from pgas.perftests.harness import plot, report, timing
from pgas.perftests.harness.jobs import ROOT
from pgas.perftests.harness.nccl_exchange import NcclExchange
from pgas.perftests.harness.options import TRANSPORTS
from pgas.perftests.harness.peers import attempted, torch_with_nccl

__all__ = ["main"]

#: The program that has the kernels.
_GALLERY = ROOT / "docs" / "gallery" / "ep.py"

#: Number of 8-bit elements that share a scale.
_SCALED = 128

#: Names of --dtype.
_DTYPES = ("bf16", "fp8")

#: Maximum number of iterations behind one lead-in, because the stream's queue is finite, and nanoseconds of the CPU for each of them.
_QUEUED, _QUEUE_NS = 50, 100_000


# The exchange ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def _gallery() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("pgas_gallery_ep", str(_GALLERY))
    module = ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


@dataclass(frozen=True)
class _Shape:
    """What is exchanged in a row of the table."""

    tokens: int
    hidden: int
    top_k: int
    experts: int
    dtype: str
    blocks: int
    threads: int
    seed: int

    @property
    def at(self) -> int:
        """Number of int32 words before the token's number in a row: data and scales, whole units of 16 bytes."""
        return self.hidden // 2 if self.dtype == "bf16" else -(-(self.hidden // 4 + self.hidden // _SCALED) // 4) * 4

    @property
    def width(self) -> int:
        """Number of int32 words of a row."""
        return self.at + (2 * self.top_k + 4) // 4 * 4

    def heap_bytes(self, npes: int) -> int:
        """Bytes of symmetric heap that the row needs."""
        return self.tokens * (1 + npes) * (4 * self.width + 4 * self.hidden)

    def results(self, pe: int, source: int) -> Any:
        """Return what the experts of a PE answer to the rows from another: bfloat16 from 0.5 to 2, with a sign."""
        bits = np.random.default_rng([self.seed, pe, 1 + source]).integers(0, 1 << 16, (self.tokens, self.hidden), np.uint16)
        return (bits & 0x80FF | 0x3F00).view(bfloat16)


class _Sent:
    """What a PE sends, and where, which every PE can compute."""

    def __init__(self, shape: _Shape, pe: int) -> None:
        random, tokens = np.random.default_rng([shape.seed, pe]), shape.tokens
        self.ids = np.argsort(random.random((tokens, shape.experts)), axis=1)[:, : shape.top_k].astype(np.int32)
        homes = self.ids // (shape.experts // pgas.n_pes())
        #: Whether a token (axis 0) goes to a PE (axis 1).
        self.goes = np.stack([(homes == each).any(axis=1) for each in range(pgas.n_pes())], axis=1)
        self.weights = random.integers(0, 1 << 31, self.ids.shape, np.int32)
        words = random.integers(0, 1 << 32, (tokens, shape.at), np.uint32).view(np.int32)
        number = np.arange(tokens, dtype=np.int32)[:, None]
        #: Rows as they should arrive: words, number, ids, and weights.
        self.rows = np.concatenate([words, number, self.ids, self.weights], axis=1)
        #: Rows before dispatch, with room for the rest.
        self.padded = np.pad(words, ((0, 0), (0, shape.width - shape.at)))


class _Exchange:
    """Arrays and kernels of a row of the table; collective. ``keep`` returns an array, and frees it later."""

    def __init__(self, shape: _Shape, keep: Callable[[Any], Any]) -> None:
        me, n, tokens, words, blocks = pgas.my_pe(), pgas.n_pes(), shape.tokens, shape.hidden // 4, shape.blocks
        self.shape, self.mine = shape, _Sent(shape, me)
        zeros: Callable[..., Any] = lambda dtype, *sizes: keep(pgas.zeros(sizes, dtype))  # noqa: E731
        send = keep(pgas.array(self.mine.padded))
        y = keep(pgas.array(np.stack([shape.results(me, source).view(np.int64) for source in range(n)])))
        self.recv, self.ends = zeros(np.int32, n, tokens, shape.width), zeros(np.int32, n, blocks)
        self.back, self.out = zeros(np.int64, n, tokens, words), zeros(np.int64, tokens, words)
        arrived, rounds, masks = zeros(np.uint64, 2, n, blocks), zeros(np.int64, 2, blocks), zeros(np.int64, tokens)
        ids, weights, at, local = keep(pgas.array(self.mine.ids)), keep(pgas.array(self.mine.weights)), shape.at, shape.experts // n
        #: dispatch and combine, and their arguments.
        self.kernels: tuple[tuple[Any, tuple[Any, ...]], ...] = (
            (_gallery().dispatch, (self.recv, self.ends, arrived[0], rounds[0], masks, send, ids, weights, at, local)),
            (_gallery().combine, (self.out, self.back, arrived[1], rounds[1], masks, y, self.recv, self.ends, at)),
        )

    def run(self) -> None:
        """Dispatch and combine; collective. A ValueError on all PEs if the blocks cannot all be resident."""
        for kernel, arguments in self.kernels:
            pgas.launch(kernel, self.shape.blocks, self.shape.threads, arguments)
        pgas.barrier_all()

    def bound(self, stream: Any) -> list[BoundLaunch]:
        """Return launches of dispatch and combine like those of run(), on which all PEs agreed there."""
        configuration = self.shape.blocks, self.shape.threads, platform.core_stream(stream), 0
        return [BoundLaunch(kernel, configuration, arguments, cooperative=True) for kernel, arguments in self.kernels]

    def spoil(self) -> None:
        """Overwrite rows and sums, so that what the next kernels do not write is wrong; collective."""
        for array in (self.recv, self.back, self.out):
            array.copy_to_device(np.full(array.shape, -1, array.dtype))
        pgas.barrier_all()

    def fault(self) -> str | None:
        """Return what is wrong with the rows that arrived here, or with the sums; None if nothing is."""
        me, shape, ends = pgas.my_pe(), self.shape, self.ends.copy_to_host()
        total = np.zeros((shape.tokens, shape.hidden), np.float32)
        for pe in range(pgas.n_pes()):
            sent = _Sent(shape, pe)
            expected = sent.rows[sent.goes[:, me]]
            if ends[pe, -1] != len(expected):
                return f"{ends[pe, -1]} rows from PE {pe} instead of {len(expected)}"
            wrong = np.flatnonzero((self.recv[pe].copy_to_host()[: len(expected), : expected.shape[1]] != expected).any(axis=1))
            if wrong.size:
                return f"{wrong.size} wrong rows from PE {pe}, the first is row {wrong[0]}"
            mine = self.mine.goes[:, pe]
            total[mine] += shape.results(pe, me)[: mine.sum()].astype(np.float32)
        wrong = np.flatnonzero((self.out.copy_to_host() != total.astype(bfloat16).view(np.int64)).any(axis=1))
        return f"{wrong.size} wrong sums, the first of token {wrong[0]}" if wrong.size else None


# Timing ---------------------------------------------------------------------------------------------------------------------------


def _seconds(stream: Any, iters: int, calls: list[Callable[[], None]]) -> list[float]:
    """Return the average seconds of each call on a stream, which begins when all PEs have come to it; collective."""
    spans: list[list[Callable[[], float]]] = [[] for _ in calls]
    collects = gc.isenabled()
    gc.disable()  # because a collection could take longer than the lead-in
    try:
        for first in range(0, iters, _QUEUED):
            count = min(_QUEUED, iters - first)
            if not pgas.SIMULATOR:
                timing.lead_in[1, 1, stream](5 * count, _QUEUE_NS // 5)
            for _ in range(count):
                for call, found in zip(calls, spans, strict=True):
                    pgas.sync_all(stream=stream)
                    found.append(_span(stream, call))
            pgas.synchronize(stream)
    finally:
        if collects:
            gc.enable()
    return [sum(seconds() for seconds in found) / iters for found in spans]


def _span(stream: Any, call: Callable[[], None]) -> Callable[[], float]:
    """Perform a call on the stream; return a function that returns its seconds, afterward."""
    if pgas.SIMULATOR:
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        return lambda: seconds
    start, stop = cuda.event(timing=True), cuda.event(timing=True)
    start.record(stream)
    call()
    stop.record(stream)
    return lambda: float(cuda.event_elapsed_time(start, stop)) / 1e3


def _measured(shape: _Shape, iters: int) -> tuple[list[float], str | None]:
    """Return the seconds of dispatch, combine, and both, and what is wrong; collective."""
    with ExitStack() as arrays:
        exchange, stream, count = _Exchange(shape, arrays.enter_context), cuda.stream(), min(iters, _QUEUED)
        exchange.run()
        fault = exchange.fault()
        exchange.spoil()
        kernels = exchange.bound(stream)

        def loop() -> None:
            for _ in range(count):
                for kernel in kernels:
                    kernel()

        seconds = _seconds(stream, iters, list(kernels))
        seconds.append(_seconds(stream, 1, [loop])[0] / count)
        pgas.barrier_all()
        return seconds, fault or exchange.fault()


def _measured_nccl(nccl: tuple[Any, Any, Any], shape: _Shape, iters: int) -> tuple[dict[str, list[float]], str | None]:
    """Return what _measured() does, of NCCL with splits known and with counts; collective."""
    me, sent = pgas.my_pe(), [_Sent(shape, pe) for pe in range(pgas.n_pes())]
    exchange = NcclExchange(*nccl, sent[me].padded, sent[me].goes, shape.hidden)
    fault = exchange.fault(np.concatenate([each.padded[each.goes[:, me]] for each in sent]))
    return exchange.seconds(iters), fault


# The command ----------------------------------------------------------------------------------------------------------------------

_COLUMNS = (
    ("tokens", "tokens", 8), ("dtype", "dtype", 7), ("library", "library", 21), ("sms", "SMs", 6), ("dispatch_us", "dispatch(us)", 14),
    ("dispatch_gbps", "GB/s", 9), ("combine_us", "combine(us)", 13), ("combine_gbps", "GB/s", 9), ("both_us", "both(us)", 11),
    ("validated", "validated", 9),
)  # fmt: skip


class _Table:
    """Rows, which PE 0 prints."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.without: list[str] = []  #: What was not measured, and why.

    def add(self, shape: _Shape, library: str, sms: int | None, seconds: list[float], fault: str | None) -> None:
        """Add a row with the times of the slowest PE, and without figures if data was wrong; collective."""
        me, goes = pgas.my_pe(), _Sent(shape, pgas.my_pe()).goes
        found = pgas.allgather_object((seconds, float(goes.sum() - goes[:, me].sum()), fault))
        sent, faults = sum(one[1] for one in found) / len(found), {pe: one[2] for pe, one in enumerate(found) if one[2]}
        us = [None if faults else 1e6 * max(each) for each in zip(*(one[0] for one in found), strict=True)]
        gbps = [sent * nbytes / each / 1e3 if each else None for each, nbytes in zip(us, (4 * shape.width, 2 * shape.hidden), strict=False)]
        figures = {"dispatch_us": us[0], "dispatch_gbps": gbps[0], "combine_us": us[1], "combine_gbps": gbps[1], "both_us": us[2]}
        row = {"tokens": shape.tokens, "dtype": shape.dtype, "library": library, "sms": sms, **figures, "rows": sent}
        self.rows.append(row | {"validated": not faults})
        if me == 0:
            for pe, text in faults.items():
                print(f"ep: error: {shape.tokens} tokens, {shape.dtype}, {library}: PE {pe}: {text}", file=sys.stderr)
            cells = {key: f"{cell:.2f}" if isinstance(cell, float) else cell for key, cell in row.items() if cell is not None}
            cells["validated"] = "NO" if faults else "yes"
            line = "".join(f"{cells.get(key, '-'):<{width}}" for key, _, width in _COLUMNS)
            print(report.said(line.rstrip(), pgas.SIMULATOR), flush=True)

    def omit(self, why: str) -> None:
        """Note that something is not measured."""
        self.without.append(why)
        if pgas.my_pe() == 0:
            print(f"# not measured: {why}", flush=True)


def _numbers(least: int, most: int) -> Callable[[str], list[int]]:
    convert = within(least, most)

    def numbers(text: str) -> list[int]:
        return [convert(part) for part in text.split(",")]

    return numbers


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("python -m pgas.perftests.ep", description="Expert-parallel dispatch and combine.", allow_abbrev=False)
    small = pgas.SIMULATOR
    tokens, hidden, top_k, experts, blocks, threads = ([5], 128, 3, 24, [2], 64) if small else ([128, 4096], 7168, 8, 256, [32], 512)
    count, iters = within(1, 1 << 20), 2 if small else 50
    text = ",".join(map(str, tokens))
    parser.add_argument("--tokens", type=_numbers(1, 1 << 20), default=tokens, metavar="N,N", help=f"tokens of each PE [{text}]")
    parser.add_argument("--hidden", type=count, default=hidden, metavar="N", help=f"elements of a token [{hidden}]")
    parser.add_argument("--top-k", type=count, default=top_k, metavar="N", help=f"experts of a token [{top_k}]")
    parser.add_argument("--experts", type=count, default=experts, metavar="N", help=f"experts of all PEs together [{experts}]")
    parser.add_argument("--blocks", type=_numbers(1, 1024), default=blocks, metavar="N,N", help=f"blocks, one per SM [{blocks[0]}]")
    parser.add_argument("--threads", type=within(32, 512), default=threads, metavar="N", help=f"threads of a block [{threads}]")
    parser.add_argument("--dtype", type=one_of((*_DTYPES, "all")), default="bf16", metavar="NAME", help="bf16, fp8, or all [bf16]")
    parser.add_argument("--iters", type=within(1, 100_000), default=iters, metavar="N", help=f"timed iterations [{iters}]")
    parser.add_argument("--seed", type=within(0, 2**63 - 1), default=1, metavar="N", help="seed of data and routing [1]")
    parser.add_argument("--transport", type=one_of(TRANSPORTS), metavar="NAME", help=f"{', '.join(TRANSPORTS)} [pgas chooses]")
    parser.add_argument("--peer", action="store_true", help="also measure PyTorch's all_to_all_single over NCCL")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="draw the results as bars into a PNG")
    options = parser.parse_args(argv)
    if options.hidden % _SCALED:
        parser.error(f"argument --hidden: {options.hidden} is not a multiple of {_SCALED}")
    if options.threads % 32:
        parser.error(f"argument --threads: {options.threads} is not a multiple of 32")
    if options.top_k > options.experts:
        parser.error(f"argument --top-k: {options.top_k} exceeds the number of experts, {options.experts}")
    if options.plot is not None and (why := plot.lacking()) is not None:
        parser.error(f"argument --plot: {why}")
    if not _GALLERY.exists():
        parser.error("the kernels are in docs/gallery/ep.py of the repository, which an installed wheel lacks: run it in a clone")
    return options


def main(argv: list[str] | None = None) -> int:
    """Measure every row, and print. The exit status is 1 if data was wrong, 2 if the flags do not suit the job."""
    outlive_reader()
    options = _options(argv)
    dtypes, sizes = _DTYPES if options.dtype == "all" else (options.dtype,), (options.hidden, options.top_k, options.experts)
    shapes = [
        _Shape(tokens, *sizes, dtype, blocks, options.threads, options.seed)
        for dtype in dtypes
        for tokens in options.tokens
        for blocks in options.blocks
    ]
    if options.transport is not None:
        os.environ["PGAS_TRANSPORT"] = options.transport
    found = launched()
    needed = max(shape.heap_bytes((found and found.size) or 1) for shape in shapes) + (64 << 20)
    os.environ.setdefault("PGAS_SYMMETRIC_SIZE", str(max(1 << 30, needed)))
    with pgas.init() as job:
        me, n = job.my_pe, job.n_pes
        if options.experts % n or n > min(64, options.threads):
            if me == 0:
                why = f"{options.experts} experts cannot be spread evenly" if options.experts % n else "there are too many PEs"
                print(f"ep: error: {why}, over {n} PEs; at most 64 PEs, a thread of a block for each", file=sys.stderr)
            return 2
        about = pgas.info() | {"date": report.now(), "commit": report.commit()}
        if me == 0:
            where = report.place(about["machine"], about["gpu"])
            print(f"# {n} PEs on {where}; transport {job.transport}; {about['date']}")
            print(f"# {options.hidden} elements, top {options.top_k} of {options.experts} experts, {options.threads} threads per block")
            print("".join(f"{title:<{width}}" for _, title, width in _COLUMNS).rstrip(), flush=True)
        timing.prepare()
        pgas.sync_all(stream=0)  # so that its kernel is compiled before the clock starts
        table = _Table()
        for shape in shapes:
            try:
                table.add(shape, "pgas", shape.blocks, *_measured(shape, options.iters))
            except (ValueError, pgas.HeapError) as error:  # on all PEs: the blocks cannot all be resident, or there is no memory
                table.omit(f"{shape.tokens} tokens, {shape.dtype}, {shape.blocks} blocks: {error}")
        if options.peer:
            _add_nccl(table, job, shapes, options.iters)
        if me == 0:
            flags = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
            run = {"test": "ep", **about, "args": flags, "not_measured": table.without, "rows": table.rows}
            if options.json is not None:
                Path(options.json).write_text(report.rows_in_lines(run) + "\n", encoding="utf-8")
            if options.plot is not None:
                plot.draw([run], options.plot)
    return int(not table.rows or not all(row["validated"] for row in table.rows))


def _add_nccl(table: _Table, job: Any, shapes: list[_Shape], iters: int) -> None:
    """Add the rows of NCCL, which has no number of blocks; collective."""
    torch, device, group, why = torch_with_nccl(job)
    for shape in () if why else {(shape.tokens, shape.dtype): shape for shape in shapes}.values():
        found, why = attempted(functools.partial(_measured_nccl, (torch, device, group), shape, iters))
        if found is None or why:
            break
        for kind, seconds in found[0].items():
            table.add(shape, f"NCCL, {kind}", None, seconds, found[1])
    if why:
        table.omit(f"NCCL: {why}")
    if group is not None:
        group.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
