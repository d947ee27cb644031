"""A sum of arrays of all PEs around a ring, in chunks, beside pgas.reduce: ``mpirun -n 4 python ring_allreduce.py --chunks 4``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def ring_allreduce(data, inbox, signal, chunks, turn):
    """Take n - 1 steps of reduce-scatter, then n - 1 of all-gather. A step sends one of n parts to the right, in chunks."""
    me, n = pgas.my_pe(), pgas.n_pes()
    right, size = (me + 1) % n, data.size // n // chunks
    for step in range(2 * n - 2):
        for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
            out = ((me - step + 2 * n) % n * chunks + chunk) * size  # where the chunk lies that is sent
            come = ((me - step - 1 + 2 * n) % n * chunks + chunk) * size  # and the one that comes
            slot, arrived = (step * chunks + chunk) * size, step * chunks + chunk
            if step < n - 1:  # partial sums, into a place of their own: the right PE adds them to its data
                pgas.put_signal_nbi_block(inbox[slot : slot + size], data[out : out + size], signal, arrived, turn, pgas.SIGNAL_SET, right)
            else:  # sums, into their place
                pgas.put_signal_nbi_block(data[out : out + size], data[out : out + size], signal, arrived, turn, pgas.SIGNAL_SET, right)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, arrived, pgas.EQ, turn)
            cuda.syncthreads()  # the chunk has come
            if step < n - 1:
                for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
                    data[come + i] += inbox[slot + i]
                cuda.syncthreads()  # and is added


@pgas.jit
def library(data, chunks):
    """The same by pgas.reduce: each block has a channel, and reduces its chunks there, in place."""
    size = data.size // chunks
    for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
        part = data[chunk * size : (chunk + 1) * size]
        pgas.reduce_block(pgas.TEAM_WORLD, part, part, pgas.SUM, cuda.blockIdx.x)


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"elements": 4096, "chunks": 4, "blocks": 2, "threads": 64, "times": 1}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # blocks: at most PGAS_CHANNELS; of times the fastest counts
args = options.parse_args()

with pgas.init():
    me, n, right, turn, best = pgas.my_pe(), pgas.n_pes(), True, 0, {}
    elements = args.elements - args.elements % (n * args.chunks)
    mine = np.random.default_rng(me).random(elements, np.float32)
    expected = sum(np.random.default_rng(pe).random(elements, np.float32).astype(float) for pe in range(n))
    data, inbox = pgas.zeros(elements, np.float32), pgas.zeros(max(n - 1, 1) * (elements // n), np.float32)
    signal = pgas.zeros(2 * n * args.chunks, np.uint64)
    for name in ("ring", "pgas.reduce"):
        seconds = []
        for _ in range(1 + args.times):  # the first time, the kernel is compiled
            turn += 1  # signals of earlier turns are no signals of this one
            data.copy_to_device(mine)
            pgas.barrier_all()
            began = time.perf_counter()
            if name == "ring":
                pgas.launch(ring_allreduce, args.blocks, args.threads, (data, inbox, signal, args.chunks, turn))
            else:
                pgas.launch(library, args.blocks, args.threads, (data, args.chunks))
            pgas.barrier_all()
            seconds.append(time.perf_counter() - began)
            right &= all(pgas.allgather_object(bool(np.allclose(data.copy_to_host(), expected, rtol=1e-5))))
        best[name] = f"{name} {min(seconds[1:]) * 1e6:.1f} us"
    if me == 0:
        told = f"{'right' if right else 'WRONG'}, {', '.join(best.values())}"
        print(f"ring_allreduce: {n} PEs, {data.nbytes} bytes, {args.chunks} chunks: {told}")
raise SystemExit(not right)
