"""A sum of arrays of all PEs around a ring, in chunks, compared with pgas.reduce: ``mpirun -n 4 python ring_allreduce.py --chunks 1 4``."""

import argparse
import math
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def ring_allreduce(data, inbox, signal, chunks, turn):
    """Perform n - 1 steps of reduce-scatter, then n - 1 steps of all-gather. Each step sends one of n parts to the right, in chunks."""
    me, n = pgas.my_pe(), pgas.n_pes()
    right, size = (me + 1) % n, data.size // n // chunks
    for step in range(2 * n - 2):
        for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
            out = ((me - step + 2 * n) % n * chunks + chunk) * size  # start of the chunk that is sent
            come = ((me - step - 1 + 2 * n) % n * chunks + chunk) * size  # start of the chunk that arrives
            slot, arrived = (step * chunks + chunk) * size, step * chunks + chunk
            if step < n - 1:  # partial sums, into the inbox: the right PE adds them to its data
                pgas.put_signal_nbi_block(inbox[slot : slot + size], data[out : out + size], signal, arrived, turn, pgas.SIGNAL_SET, right)
            else:  # complete sums, into data
                pgas.put_signal_nbi_block(data[out : out + size], data[out : out + size], signal, arrived, turn, pgas.SIGNAL_SET, right)
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, arrived, pgas.EQ, turn)
            cuda.syncthreads()  # the chunk is visible to all threads
            if step < n - 1:
                for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
                    data[come + i] += inbox[slot + i]
                cuda.syncthreads()  # the chunk has been added


@pgas.jit
def library(data, chunks):
    """The same with pgas.reduce: each block has a channel, on which it reduces its chunks in place."""
    size = data.size // chunks
    for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
        part = data[chunk * size : (chunk + 1) * size]
        pgas.reduce_block(pgas.TEAM_WORLD, part, part, pgas.SUM, cuda.blockIdx.x)


@pgas.jit
def puts(data, inbox, chunks):
    """Put what the ring puts, without waiting or adding. B in the formula is its bytes divided by its time."""
    size = inbox.size // chunks
    for _ in range(2):  # reduce-scatter and all-gather
        for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
            part = slice(chunk * size, (chunk + 1) * size)
            pgas.put_nbi_block(inbox[part], data[part], (pgas.my_pe() + 1) % pgas.n_pes())
        pgas.fence()  # the second time writes the same elements


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--chunks", type=int, nargs="+", default=[4], help="of each of the n parts of the array")
options.add_argument("--plot", help="a PNG to draw: times over the number of chunks")
for name, default in {"elements": 4096, "blocks": 2, "threads": 64, "times": 1}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # blocks: at most PGAS_CHANNELS; times: the fastest is reported
args = options.parse_args()

with pgas.init():
    me, n, right, turn, times = pgas.my_pe(), pgas.n_pes(), True, 0, {"ring": [], "pgas.reduce": [], "puts alone": []}
    elements = args.elements - args.elements % (n * math.lcm(*args.chunks))
    mine = np.random.default_rng(me).random(elements, np.float32)
    expected = sum(np.random.default_rng(pe).random(elements, np.float32).astype(float) for pe in range(n))
    data, inbox = pgas.zeros(elements, np.float32), pgas.zeros(max(n - 1, 1) * (elements // n), np.float32)
    signal = pgas.zeros(2 * n * max(args.chunks), np.uint64)
    for chunks in args.chunks:
        for name, points in times.items():
            seconds = []
            for _ in range(1 + args.times):  # the first run includes compilation
                turn += 1  # signals of earlier turns do not match this turn's number
                runs = (ring_allreduce, (data, inbox, signal, chunks, turn)), (library, (data, chunks)), (puts, (data, inbox, chunks))
                kernel, arguments = runs[list(times).index(name)]
                data.copy_to_device(mine)
                pgas.barrier_all()
                began = time.perf_counter()
                pgas.launch(kernel, args.blocks, args.threads, arguments)
                pgas.barrier_all()
                seconds.append(time.perf_counter() - began)
                right &= all(pgas.allgather_object(kernel is puts or bool(np.allclose(data.copy_to_host(), expected, rtol=1e-5))))
            points.append((chunks, min(seconds[1:])))
        if me == 0:
            told = ", ".join(f"{name} {points[-1][1] * 1e6:.1f} us" for name, points in times.items())
            print(f"ring_allreduce: {n} PEs, {data.nbytes} bytes, {chunks} chunks: {'right' if right else 'WRONG'}, {told}")
    if me == 0 and args.plot:
        from pgas.perftests import plot

        curves = [plot.Curve(name, points, number) for number, (name, points) in enumerate(times.items())]
        place = f"{pgas.info()['machine']}, {pgas.info()['transport']}, {time.strftime('%Y-%m-%d')}"
        details = f"{place}: {n} PEs, {data.nbytes} bytes, {args.blocks} x {args.threads} threads"
        plot.picture(args.plot, "All-reduce around a ring", details, [plot.Panel(curves, "chunks of a part", "time", "s")])
raise SystemExit(not right)
