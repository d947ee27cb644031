"""NVIDIA's Jacobi solver (multi-gpu-programming-models, nvshmem/jacobi.cu), with its flags and its output, on any number of PEs.

    mpirun -n 4 python -m pgas.perftests.jacobi -nx 16384 -ny 16384 -niter 1000 -csv

The rows of the mesh are divided among the PEs; the last row is above the first. By default each thread sends its element of a border row
with ``p``. With ``-use_block_comm``, each block puts its part of a border row. Both launch one kernel per iteration, and a barrier on the
stream; the norm is summed on the stream, and the host reads it one iteration later, like NVIDIA's program. ``-persistent``, which NVIDIA's
program does not have, is one kernel for all iterations, in which neighbors signal each other and blocks synchronize in a grid barrier.

A step must load and store the mesh once: 2.15 GB for 16,384 x 16,384, 0.72 ms on one H100 (a device copy). Therefore a thread walks down a
strip of rows with its column in registers, warps begin at multiples of 128 bytes, and a block adds one number to the norm for the elements
of its whole strip: 0.77 ms per step on one H100 (2026-11-27), where one thread per element took 2.6.

The result is compared with the mesh that a single PE computes; no element may differ by more than 1e-8, the norm at which the solver ends.
Times are wall-clock times from barrier to barrier; output in the simulator notes that they are an interpreter's. A line of -csv: version,
nx, ny, niter, nccheck, PEs, 1, seconds, seconds of one PE.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.base.arguments import Parser, one_of, output_file, within
from pgas.base.output import outlive_reader
from pgas.perftests.harness.options import TRANSPORTS
from pgas.perftests.harness.report import said

#: The norm below which the solver ends, like NVIDIA's.
_TOLERANCE = 1e-8

#: Rows that a thread walks down, and threads of a block, of p and of put; blocks of an SM, which bound the registers of put.
_STRIP, _THREADS, _BLOCKS = (16, 128, 10) if not pgas.SIMULATOR else (8, 32, 1)

#: The same for the persistent kernel, whose loop spills with 64 registers per thread.
_LONG_STRIP, _PERSISTENT_THREADS, _PERSISTENT_BLOCKS = (16, 512, 1) if not pgas.SIMULATOR else (9, 32, 1)

#: Name in the output of the device that holds a part of the mesh.
_PLACE = "PE" if pgas.SIMULATOR else "GPU"

#: Indices in the array of signals, of even steps; those of odd steps follow, because two signals on one word are not ordered.
_FROM_ABOVE, _FROM_BELOW = 0, 1

_FULL, _QUARTER = 0xFFFFFFFF, np.float32(0.25)


# Kernels --------------------------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def _add_up(norms, slot, value):
    """Add the values of all threads of the block to ``norms[slot]``."""
    sums = cuda.shared.array(32, np.float32)
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(_FULL, value, distance)
    if cuda.laneid == 0:
        sums[thread // 32] = value
    cuda.syncthreads()
    if thread == 0:
        for warp in range(1, cuda.blockDim.x * cuda.blockDim.y // 32):
            value += sums[warp]
        cuda.atomic.add(norms, slot, value)


@cuda.jit(device=True)
def _sides(old, y, x):
    return old[y, x + 1] + old[y, x - 1]


@cuda.jit(device=True)
def _load_four(old, y, x):
    """Load what four rows from y on need, except for the two elements above: the column of the rows below, and the sums of both sides."""
    below = old[y + 1, x], old[y + 2, x], old[y + 3, x], old[y + 4, x]
    return below, (_sides(old, y, x), _sides(old, y + 1, x), _sides(old, y + 2, x), _sides(old, y + 3, x))


@cuda.jit(device=True)
def _keep(new, y, x, total, here, square):
    """Store the mean of four neighbors, and add the square of the change."""
    value = _QUARTER * total
    new[y, x] = value
    return square + (value - here) * (value - here)


@cuda.jit(device=True)
def _keep_four(new, y, x, above, here, loaded, square):
    """Compute four rows from y on. above, here: elements of rows y - 1 and y."""
    below, sides = loaded
    square = _keep(new, y, x, sides[0] + below[0] + above, here, square)
    square = _keep(new, y + 1, x, sides[1] + below[1] + here, below[0], square)
    square = _keep(new, y + 2, x, sides[2] + below[2] + below[0], below[1], square)
    return _keep(new, y + 3, x, sides[3] + below[3] + below[1], below[2], square)


@cuda.jit(device=True)
def _walk(new, old, x, y, end):
    """Compute column x of rows y to end - 1, and return the sum of the squares of changes.

    A thread walks down several rows, so that it loads each element of its column once, and adds up the norm in a register. It loads the
    elements for eight rows before it stores any, because no load moves before a store, and each turn takes a latency.
    """
    above, here, square = old[y - 1, x], old[y, x], np.float32(0)
    while y + 7 < end:
        first, second = _load_four(old, y, x), _load_four(old, y + 4, x)
        square = _keep_four(new, y, x, above, here, first, square)
        square = _keep_four(new, y + 4, x, first[0][2], first[0][3], second, square)
        above, here, y = second[0][2], second[0][3], y + 8
    while y < end:
        below = old[y + 1, x]
        square = _keep(new, y, x, _sides(old, y, x) + below + above, here, square)
        above, here, y = here, below, y + 1
    return square


@pgas.jit(launch_bounds=_THREADS)
def _by_p(new, old, rows, norms, slot, check, up, up_halo, down):
    """Make a step. If up < 0, there is one PE, which stores into its halo rows. If check, norms[slot] receives the squares of changes."""
    x, first, square = cuda.grid(1), 1 + cuda.blockIdx.y * _STRIP, np.float32(0)
    end = min(first + _STRIP, rows + 1)
    if x == 0 and first == 1:
        norms[1 - slot] = 0  # This slot was summed before this kernel began.
    if 0 < x < old.shape[1] - 1:  # Threads begin at column 0, so that warps load and store whole lines.
        square = _walk(new, old, x, first, end)
        if first == 1:
            if up < 0:
                new[up_halo, x] = new[1, x]
            else:
                pgas.p(new, (up_halo, x), new[1, x], up)
        if end == rows + 1:
            if up < 0:
                new[0, x] = new[rows, x]
            else:
                pgas.p(new, (0, x), new[rows, x], down)
    if check:
        _add_up(norms, slot, square)


@pgas.jit(launch_bounds=(_THREADS, _BLOCKS))
def _by_put(new, old, rows, norms, slot, check, up, up_halo, down):
    """Like _by_p(), but a block puts its part of a border row."""
    x, first, square = cuda.grid(1), 1 + cuda.blockIdx.y * _STRIP, np.float32(0)
    left, right = max(cuda.blockIdx.x * cuda.blockDim.x, 1), min((cuda.blockIdx.x + 1) * cuda.blockDim.x, old.shape[1] - 1)
    end = min(first + _STRIP, rows + 1)
    if x == 0 and first == 1:
        norms[1 - slot] = 0
    if left <= x < right:
        square = _walk(new, old, x, first, end)
    if first == 1:  # All rows are stored, because put_nbi_block synchronizes the block on entry.
        pgas.put_nbi_block(new[up_halo, left:right], new[1, left:right], up)
    if end == rows + 1:
        pgas.put_nbi_block(new[0, left:right], new[rows, left:right], down)
    if check:
        _add_up(norms, slot, square)


@pgas.jit(launch_bounds=(_PERSISTENT_THREADS, _PERSISTENT_BLOCKS))
def _persistent(a, b, rows, norms, totals, signal, up, up_halo, down, steps, nccheck, tolerance, taken):
    """Make steps until the norm is small enough, and store their number. norms and totals have two slots, used alternately."""
    grid, step, slot, width = cuda.cg.this_grid(), 0, 0, cuda.blockDim.x
    columns, strips = (a.shape[1] - 1 + width) // width, (rows - 1 + _LONG_STRIP) // _LONG_STRIP
    going = True
    while going and step < steps:
        old, new, words = (a, b, 0) if step % 2 == 0 else (b, a, 2)
        check, square = step % nccheck == 0, np.float32(0)
        for tile in range(cuda.blockIdx.x, columns * strips, cuda.gridDim.x):
            x, first = tile % columns * width + cuda.threadIdx.x, 1 + tile // columns * _LONG_STRIP
            if 0 < x < a.shape[1] - 1:
                square += _walk(new, old, x, first, min(first + _LONG_STRIP, rows + 1))
        if check:
            _add_up(norms, slot, square)
        grid.sync()
        if cuda.blockIdx.x == 0:
            pgas.put_signal_block(new[up_halo], new[1], signal, words + _FROM_BELOW, step + 1, pgas.SIGNAL_SET, up)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, words + _FROM_ABOVE, pgas.GE, step + 1)
            if check:
                pgas.reduce_block(pgas.TEAM_WORLD, totals[slot : slot + 1], norms[slot : slot + 1], pgas.SUM)
                norms[1 - slot] = 0
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            pgas.put_signal_block(new[0], new[rows], signal, words + _FROM_ABOVE, step + 1, pgas.SIGNAL_SET, down)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, words + _FROM_BELOW, pgas.GE, step + 1)
        grid.sync()
        if check:
            going, slot = totals[slot] > tolerance * tolerance, 1 - slot
        step += 1
    if cuda.grid(1) == 0:
        taken[0] = step


# The mesh -------------------------------------------------------------------------------------------------------------------------


class _Mesh:
    """Two copies of a PE's rows of the mesh between halo rows, or of all rows, for a single PE."""

    def __init__(self, nx: int, ny: int, *, alone: bool = False) -> None:
        me, n = (0, 1) if alone else (pgas.my_pe(), pgas.n_pes())
        low, more = divmod(ny - 2, n)  # The last PEs have one more row.
        counts = [low + (pe >= n - more) for pe in range(n)]
        self.rows, self.up, self.down = counts[me], (me - 1) % n, (me + 1) % n
        self.first = 1 + sum(counts[:me])  #: row of the mesh, whose inner rows are 1 to ny - 2
        self.up_halo = counts[self.up] + 1
        if alone:
            self.up = -1
        self._start = np.zeros((max(counts) + 2, nx), np.float32)
        y = np.arange(self.first, self.first + self.rows)
        self._start[1 : self.rows + 1, [0, nx - 1]] = np.sin(2 * np.pi * y / (ny - 1)).astype(np.float32)[:, None]
        make = cuda.device_array if alone else pgas.empty
        self.a, self.b, self.norms, self.totals = (make(shape, np.float32) for shape in (self._start.shape, self._start.shape, 2, 2))
        if not alone:
            self.signal, self.taken = pgas.zeros(4, np.uint64), pgas.zeros(1, np.int64)

    def reset(self) -> None:
        """Set the state before the first step."""
        for array in (self.a, self.b):
            array.copy_to_device(self._start)
        for array in (self.norms, self.totals):
            array.copy_to_device(np.zeros(2, np.float32))

    def result(self, steps: int) -> np.ndarray:
        """Return this PE's rows after a number of steps."""
        return (self.a if steps % 2 == 0 else self.b).copy_to_host()[1 : self.rows + 1]


class _Stepwise:
    def __init__(self, mesh: _Mesh, kernel: Any) -> None:
        self._mesh, self._alone, self._stream, self._copies = mesh, mesh.up < 0, cuda.stream(), cuda.stream()
        grid = -(-(mesh.a.shape[1] - 1) // _THREADS), -(-mesh.rows // _STRIP)
        configured, neighbors = kernel[grid, _THREADS, self._stream], (mesh.up, mesh.up_halo, mesh.down)
        self._launch = {
            (slot, check): configured.bind(*((mesh.b, mesh.a), (mesh.a, mesh.b))[slot], mesh.rows, mesh.norms, slot, check, *neighbors)
            for slot in (0, 1)
            for check in (False, True)
        }
        self._ends = [(total[slot : slot + 1], norm[slot : slot + 1]) for total, norm in [(mesh.totals, mesh.norms)] for slot in (0, 1)]
        self._meet = pgas.barrier_all.bind(stream=self._stream)
        self._sums = [] if self._alone else [pgas.reduce.bind(pgas.TEAM_WORLD, *end, pgas.SUM, stream=self._stream) for end in self._ends]
        self._done = [cuda.event(timing=False), cuda.event(timing=False)]

    def __call__(self, steps: int, nccheck: int, say: Callable[[int, float], None]) -> int:
        """Solve; return the number of steps taken. say(step, norm) is called for each norm that was read."""
        step, checked, norm = 0, -1, math.inf
        while norm > _TOLERANCE and step < steps:
            slot, check = step % 2, step % nccheck == 0
            self._launch[slot, check]()
            if not self._alone:
                self._meet()
            if check and not self._alone:
                if checked >= 0:  # This reads the norm while the step runs.
                    say(checked, norm := self._norm(checked % 2))
                self._sums[slot]()
                checked = step
            if check:
                self._done[slot].record(self._stream)
            if check and self._alone:
                say(step, norm := self._norm(slot))
            step += 1
        pgas.synchronize(self._stream)
        return step

    def _norm(self, slot: int) -> float:
        self._done[slot].synchronize()
        return math.sqrt(self._ends[slot][self._alone].copy_to_host(stream=self._copies)[0])


class _Persistent:
    """A solver that is one kernel."""

    def __init__(self, mesh: _Mesh, blocks: int, threads: int) -> None:
        self._mesh, self._grid = mesh, (blocks, threads)

    def __call__(self, steps: int, nccheck: int, say: Callable[[int, float], None]) -> int:
        m = self._mesh
        m.signal.copy_to_device(np.zeros(4, np.uint64))
        pgas.barrier_all()
        neighbors = m.up, m.up_halo, m.down
        arguments = (m.a, m.b, m.rows, m.norms, m.totals, m.signal, *neighbors, steps, nccheck, _TOLERANCE, m.taken)
        pgas.launch(_persistent, *self._grid, arguments)
        pgas.synchronize()
        return int(m.taken.copy_to_host()[0])


# The command ----------------------------------------------------------------------------------------------------------------------


def _timed(mesh: _Mesh, solver: Any, options: argparse.Namespace, say: Callable[[int, float], None], meet: Callable[[], None]) -> Any:
    """Solve after a warm-up. Return steps and seconds."""
    mesh.reset()
    meet()
    solver(min(3, options.niter), options.nccheck, lambda step, norm: None)
    mesh.reset()
    meet()
    started = time.perf_counter()
    steps = solver(options.niter, options.nccheck, say)
    meet()
    return steps, time.perf_counter() - started


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("python -m pgas.perftests.jacobi", description="NVIDIA's Jacobi solver.", allow_abbrev=False)
    size, steps = (64, 10) if pgas.SIMULATOR else (16384, 1000)
    whole = within(1, 1 << 30)
    parser.add_argument("-nx", type=within(3, 1 << 20), default=size, metavar="N", help=f"columns of the mesh [{size}]")
    parser.add_argument("-ny", type=within(3, 1 << 20), default=size, metavar="N", help=f"rows of the mesh [{size}]")
    parser.add_argument("-niter", type=whole, default=steps, metavar="N", help=f"maximum number of iterations [{steps}]")
    parser.add_argument("-nccheck", type=whole, default=1, metavar="N", help="iterations from one norm to the next [1]")
    parser.add_argument("-csv", action="store_true", help="print one line of figures")
    parser.add_argument("-use_block_comm", action="store_true", help="a block puts its part of a border row")
    parser.add_argument("-persistent", action="store_true", help="one kernel for all iterations, signals between neighbors")
    parser.add_argument("-blocks", type=whole, metavar="N", help="blocks of the persistent kernel [all that fit, per PE of the GPU]")
    parser.add_argument("--transport", type=one_of(TRANSPORTS), metavar="NAME", help=f"{', '.join(TRANSPORTS)} [pgas chooses]")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args(argv)
    if options.use_block_comm and options.persistent:
        parser.error("-use_block_comm and -persistent are two versions")
    return options


def main(argv: list[str] | None = None) -> int:
    """Solve, compare, and print. The exit status is 1 if a PE's rows are wrong."""
    outlive_reader()
    options = _options(argv)
    version = "put" if options.use_block_comm else "persistent" if options.persistent else "p"
    if options.transport is not None:
        os.environ["PGAS_TRANSPORT"] = options.transport
    os.environ.setdefault("PGAS_SYMMETRIC_SIZE", str(max(1 << 30, 8 * options.nx * options.ny + (64 << 20))))
    with pgas.init() as job:
        me, n = job.my_pe, job.n_pes
        if options.ny - 2 < n:
            if me == 0:
                print(f"jacobi: error: -ny {options.ny} has no row for each of {n} PEs", file=sys.stderr)
            return 2
        mesh, whole = _Mesh(options.nx, options.ny), _Mesh(options.nx, options.ny, alone=True)
        if version == "persistent":
            sharing = sum(pe.gpu == job.pes[me].gpu for pe in job.pes)
            sms = 0 if pgas.SIMULATOR else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)
            blocks = options.blocks or sms // sharing * _PERSISTENT_BLOCKS or 2
            solver: Any = _Persistent(mesh, max(1, blocks), _PERSISTENT_THREADS)
        else:
            solver = _Stepwise(mesh, _by_p if version == "p" else _by_put)
        alone = _Stepwise(whole, _by_p)

        def say(step: int, norm: float) -> None:
            if me == 0 and not options.csv and step % 100 == 0:
                print(f"{step:5}, {norm:0.6f}", flush=True)

        shape = f"{options.niter} iterations on {options.ny} x {options.nx} mesh"
        if me == 0 and not options.csv:
            print(f"Single {_PLACE} jacobi relaxation: {shape} with norm check every {options.nccheck} iterations", flush=True)
        steps_of_one = seconds_of_one = 0
        for turn in (me == 0, me != 0):  # PE 0, whose time is reported, comes first, then the others.
            if turn:
                steps_of_one, seconds_of_one = _timed(whole, alone, options, say, lambda: None)
            pgas.barrier_all()
        if me == 0 and not options.csv:
            print(f"Jacobi relaxation: {shape}", flush=True)
        steps, seconds = _timed(mesh, solver, options, say, pgas.barrier_all)
        expected = whole.result(steps_of_one)[mesh.first - 1 : mesh.first - 1 + mesh.rows]
        wrong = np.count_nonzero(np.abs(mesh.result(steps) - expected) > _TOLERANCE)
        wrongs = pgas.allgather_object(int(wrong))
        seconds_of_one = pgas.broadcast_object(seconds_of_one)
        row = {"pes": n, "backend": job.transport, "version": version, "nx": options.nx, "ny": options.ny, "iterations": steps}
        row |= {"nccheck": options.nccheck, "time_ms": seconds * 1e3, "one_pe_ms": seconds_of_one * 1e3, "validated": not any(wrongs)}
        if me == 0:
            _print(row, wrongs, options, seconds, seconds_of_one)
    return int(any(wrongs))


def _print(row: dict[str, Any], wrongs: list[int], options: argparse.Namespace, seconds: float, seconds_of_one: float) -> None:
    nx, ny, n = options.nx, options.ny, row["pes"]
    for pe, wrong in enumerate(wrongs):
        if wrong:
            print(f"ERROR: on PE {pe}, {wrong} elements differ from those of one PE", file=sys.stderr)
    if options.csv and not any(wrongs):
        name = f"pgas_{row['version']}{' (interpreter)' if pgas.SIMULATOR else ''}"
        print(f"{name}, {nx}, {ny}, {options.niter}, {options.nccheck}, {n}, 1, {seconds:f}, {seconds_of_one:f}")
    elif not any(wrongs):
        times = f"1 {_PLACE}: {seconds_of_one:8.4f} s, {n} {_PLACE}s: {seconds:8.4f} s, speedup: {seconds_of_one / seconds:8.2f}"
        line = f"{ny}x{nx}: {times}, efficiency: {seconds_of_one / seconds / n * 100:8.2f}"
        print(f"Num {_PLACE}s: {n}.", said(line, pgas.SIMULATOR), sep="\n")
    if options.json:
        Path(options.json).write_text(json.dumps({"test": "jacobi", **pgas.info(), "rows": [row]}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
