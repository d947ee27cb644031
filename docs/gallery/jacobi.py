"""Heat spreads over a plate: Jacobi's method, three ways to send the border rows. ``mpirun -n 4 python jacobi.py --version put``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda

FROM_ABOVE, FROM_BELOW = 0, 1


@pgas.jit
def by_p(new, old, up, down):
    """Each thread computes an element and, if the element is in a border row, stores it in the neighbor's halo row."""
    rows, columns = new.shape[0] - 2, new.shape[1]
    x, y = cuda.grid(2)
    x, y = x + 1, y + 1
    if x < columns - 1 and y <= rows:
        value = np.float32(0.25) * (old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1])
        new[y, x] = value
        if y == 1:
            pgas.p(new, (rows + 1, x), value, up)
        if y == rows:
            pgas.p(new, (0, x), value, down)


@pgas.jit
def by_put(new, old, up, down):
    """Each block computes a part of a row and, if the row is a border row, puts it as one message."""
    rows, columns = new.shape[0] - 2, new.shape[1]
    first, y = 1 + cuda.blockIdx.x * cuda.blockDim.x, 1 + cuda.blockIdx.y
    x, end = first + cuda.threadIdx.x, min(first + cuda.blockDim.x, columns - 1)
    if x < end:
        new[y, x] = np.float32(0.25) * (old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1])
    cuda.syncthreads()  # the part is complete
    if y == 1:
        pgas.put_nbi_block(new[rows + 1, first:end], new[1, first:end], up)
    if y == rows:
        pgas.put_nbi_block(new[0, first:end], new[rows, first:end], down)


@pgas.jit
def persistent(a, b, signal, up, down, steps):
    """One kernel performs all steps, with signals between neighbors and a grid barrier between blocks."""
    rows, columns, grid = a.shape[0] - 2, a.shape[1], cuda.cg.this_grid()
    for step in range(steps):
        old, new = (a, b) if step % 2 == 0 else (b, a)
        for y in range(1 + cuda.blockIdx.x, rows + 1, cuda.gridDim.x):
            for x in range(1 + cuda.threadIdx.x, columns - 1, cuda.blockDim.x):
                new[y, x] = np.float32(0.25) * (old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1])
        grid.sync()  # the rows are complete, whichever blocks computed them
        if cuda.blockIdx.x == 0:
            pgas.put_signal_block(new[rows + 1], new[1], signal, FROM_BELOW, step + 1, pgas.SIGNAL_SET, up)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, FROM_ABOVE, pgas.GE, step + 1)
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            pgas.put_signal_block(new[0], new[rows], signal, FROM_ABOVE, step + 1, pgas.SIGNAL_SET, down)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, FROM_BELOW, pgas.GE, step + 1)
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
    a, b, signal = pgas.array(start), pgas.array(start), pgas.zeros(2, np.uint64)
    kernel, tile = (by_p, (32, args.threads // 32)) if args.version == "p" else (by_put, (args.threads, 1))
    grid = -(-(args.nx - 2) // tile[0]), -(-rows // tile[1])
    for steps in (2, args.steps):  # the first run includes compilation
        a.copy_to_device(start), b.copy_to_device(start), signal.copy_to_device(np.zeros(2, np.uint64))
        pgas.barrier_all()
        began = time.perf_counter()
        if args.version == "persistent":
            pgas.launch(persistent, args.blocks, args.threads, (a, b, signal, up, down, steps))
        else:
            for step in range(steps):
                kernel[grid, tile](*((b, a) if step % 2 == 0 else (a, b)), up, down)
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
