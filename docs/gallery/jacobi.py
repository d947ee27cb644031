"""Heat spreads over a plate: Jacobi's method, three ways to send the border rows. ``mpirun -n 4 python jacobi.py --version put``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda

FROM_ABOVE, FROM_BELOW, STRIP = 0, 1, 8  # STRIP: rows that a thread walks down


@cuda.jit(device=True)
def walk(new, old, x, first):
    """Compute column x of STRIP rows. The thread loads each element of its column once, and those for two rows before it stores any."""
    above, here, end = old[first - 1, x], old[first, x], min(first + STRIP, new.shape[0] - 1)
    for y in range(first, end, 2):
        below, last = old[y + 1, x], old[min(y + 2, end), x]
        upper = np.float32(0.25) * (above + below + old[y, x - 1] + old[y, x + 1])
        lower = np.float32(0.25) * (here + last + old[y + 1, x - 1] + old[y + 1, x + 1])
        new[y, x] = upper
        if y + 1 < end:
            new[y + 1, x] = lower
        above, here = below, last


@pgas.jit
def one_step(new, old, up, down, by_p):
    """A block computes a strip. Elements of border rows go to the neighbors' halo rows, by_p each by its thread, otherwise by its block."""
    rows, x, first = new.shape[0] - 2, cuda.grid(1), 1 + cuda.blockIdx.y * STRIP
    left, right = max(cuda.blockIdx.x * cuda.blockDim.x, 1), min((cuda.blockIdx.x + 1) * cuda.blockDim.x, new.shape[1] - 1)
    if left <= x < right:
        walk(new, old, x, first)
        if by_p and first == 1:
            pgas.p(new, (rows + 1, x), new[1, x], up)
        if by_p and first + STRIP > rows:
            pgas.p(new, (0, x), new[rows, x], down)
    if not by_p and first == 1:  # put_nbi_block waits for all threads of the block
        pgas.put_nbi_block(new[rows + 1, left:right], new[1, left:right], up)
    if not by_p and first + STRIP > rows:
        pgas.put_nbi_block(new[0, left:right], new[rows, left:right], down)


@pgas.jit
def persistent(a, b, signal, up, down, steps):
    """One kernel performs all steps, with signals between neighbors and a grid barrier between blocks."""
    rows, columns, grid = a.shape[0] - 2, a.shape[1], cuda.cg.this_grid()
    for step in range(steps):
        old, new, words = (a, b, 0) if step % 2 == 0 else (b, a, 2)  # the words alternate: signals on one word are not ordered
        for first in range(1 + cuda.blockIdx.x * STRIP, rows + 1, cuda.gridDim.x * STRIP):
            for x in range(1 + cuda.threadIdx.x, columns - 1, cuda.blockDim.x):
                walk(new, old, x, first)
        grid.sync()  # the rows are complete, whichever blocks computed them
        if cuda.blockIdx.x == 0:
            pgas.put_signal_block(new[rows + 1], new[1], signal, words + FROM_BELOW, step + 1, pgas.SIGNAL_SET, up)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, words + FROM_ABOVE, pgas.GE, step + 1)
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            pgas.put_signal_block(new[0], new[rows], signal, words + FROM_ABOVE, step + 1, pgas.SIGNAL_SET, down)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, words + FROM_BELOW, pgas.GE, step + 1)
        grid.sync()  # the neighbors' rows are visible to all blocks


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--version", choices=("p", "put", "persistent"), default="persistent")
for name, default in {"nx": 64, "ny": 48, "steps": 10, "blocks": 4, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # ny: a multiple of the number of PEs; blocks: for the persistent kernel
args = options.parse_args()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    rows, up, down = args.ny // n, (me - 1) % n, (me + 1) % n  # the first row follows the last one
    plate = np.zeros((args.ny, args.nx), np.float32)
    plate[:, [0, -1]] = np.sin(2 * np.pi * np.arange(args.ny) / (args.ny - 1))[:, None]  # the edges, which do not change
    start = np.take(plate, range(me * rows - 1, me * rows + rows + 1), axis=0, mode="wrap")  # with a halo row above and below
    a, b, signal = pgas.array(start), pgas.array(start), pgas.zeros(4, np.uint64)
    configured, by_p = one_step[(-(-(args.nx - 1) // args.threads), -(-rows // STRIP)), args.threads], args.version == "p"
    for steps in (2, args.steps):  # the first run includes compilation
        a.copy_to_device(start), b.copy_to_device(start), signal.copy_to_device(np.zeros(4, np.uint64))
        pgas.barrier_all()
        began = time.perf_counter()
        if args.version == "persistent":
            pgas.launch(persistent, args.blocks, args.threads, (a, b, signal, up, down, steps))
        else:
            for step in range(steps):
                configured(*((b, a) if step % 2 == 0 else (a, b)), up, down, by_p)
                pgas.barrier_all(stream=0)  # the rows from all PEs have arrived
        pgas.barrier_all()
        seconds = time.perf_counter() - began
    for _ in range(args.steps):
        mean = np.float32(0.25) * (np.roll(plate, 1, 0) + np.roll(plate, -1, 0) + np.roll(plate, 1, 1) + np.roll(plate, -1, 1))
        plate[:, 1:-1] = mean[:, 1:-1]
    mine = (a if args.steps % 2 == 0 else b).copy_to_host()[1:-1]
    right = all(pgas.allgather_object(bool(np.allclose(mine, plate[me * rows : (me + 1) * rows], atol=1e-6))))
    if me == 0:
        told = f"{args.nx} x {args.ny}, {args.steps} steps: {'right' if right else 'WRONG'}, {seconds * 1e3:.2f} ms"
        print(f"jacobi {args.version}: {n} PEs, {told}")
raise SystemExit(not right)
