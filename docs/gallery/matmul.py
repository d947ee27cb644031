"""A matrix product whose left operand is gathered while it is multiplied: ``mpirun -n 4 python matmul.py --rows 8``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@cuda.jit(device=True)
def multiply(c, a, b):
    """C = A B by one block. Each thread computes elements; replace this with your own product."""
    for i in range(cuda.threadIdx.x, c.size, cuda.blockDim.x):
        row, column, total = i // c.shape[1], i % c.shape[1], np.float32(0)
        for k in range(b.shape[0]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@pgas.jit
def overlapped(c, a, b, signal, tile, senders, turn):
    """The first blocks send this PE's rows of A to all PEs, one tile at a time; the others multiply tiles in order of arrival."""
    me, n, rows, block, tiles = pgas.my_pe(), pgas.n_pes(), c.shape[0] // pgas.n_pes(), cuda.blockIdx.x, signal.shape[1]
    if block < senders:
        for t in range(block, tiles * (n - 1), senders):
            pe, first = (me + 1 + t % (n - 1)) % n, me * rows + t // (n - 1) * tile  # one tile to each PE, then the next tile
            part = a[first : first + tile]
            pgas.put_signal_nbi_block(part, part, signal, (me, t // (n - 1)), turn, pgas.SIGNAL_SET, pe)
    else:
        for t in range(block - senders, tiles * n, cuda.gridDim.x - senders):
            pe = (me - t // tiles + n) % n  # this PE's own tiles, then those of its left neighbors
            first = pe * rows + t % tiles * tile
            if pe != me:
                if cuda.threadIdx.x == 0:
                    pgas.signal_wait_until(signal, (pe, t % tiles), pgas.EQ, turn)
                cuda.syncthreads()  # the tile is visible to all threads
            multiply(c[first : first + tile], a[first : first + tile], b)


@pgas.jit
def alone(c, a, b, tile):
    """The product after the gather, for comparison."""
    for first in range(cuda.blockIdx.x * tile, c.shape[0], cuda.gridDim.x * tile):
        multiply(c[first : first + tile], a[first : first + tile], b)


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"rows": 8, "inner": 8, "columns": 8, "tile": 4, "blocks": 3, "senders": 1, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # rows: of A, per PE, a multiple of tile; columns: of B, per PE
args = options.parse_args()

with pgas.init():
    me, n, turn, right, told = pgas.my_pe(), pgas.n_pes(), 0, True, ""
    random, mine = np.random.default_rng(1), slice(me * args.rows, (me + 1) * args.rows)
    whole = random.random((args.rows * n, args.inner), np.float32)
    theirs = random.random((n, args.inner, args.columns), np.float32)  # columns of B, by PE
    a, b = pgas.zeros(whole.shape, np.float32), cuda.to_device(theirs[me])
    c, signal = cuda.device_array((args.rows * n, args.columns), np.float32), pgas.zeros((n, args.rows // args.tile), np.uint64)
    for name in ("overlapped", "gathered first"):
        for _ in range(2):  # the first run includes compilation
            turn += 1  # signals of earlier turns do not match this turn's number
            a[:] = 0
            a[mine] = whole[mine]
            pgas.barrier_all()
            began = time.perf_counter()
            if name == "overlapped":
                pgas.launch(overlapped, args.blocks, args.threads, (c, a, b, signal, args.tile, args.senders, turn))
            else:
                pgas.fcollect(pgas.TEAM_WORLD, a, a[mine], stream=0)
                alone[args.blocks, args.threads](c, a, b, args.tile)
            pgas.barrier_all()
            seconds = time.perf_counter() - began
        right &= all(pgas.allgather_object(bool(np.allclose(c.copy_to_host(), whole @ theirs[me], rtol=1e-4))))
        told += f", {name} {seconds * 1e3:.2f} ms"
    if me == 0:
        print(f"matmul: {n} PEs, {args.rows * n} x {args.inner} x {args.columns * n}: {'right' if right else 'WRONG'}{told}")
raise SystemExit(not right)
