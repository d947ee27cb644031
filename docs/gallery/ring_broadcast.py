"""A broadcast around a ring, in chunks that are forwarded as they arrive: ``mpirun -n 4 python ring_broadcast.py --chunks 1 4 16``.

The formula: N bytes in S chunks reach the last of K PEs after N (S + K - 2) / (S B), where B is the bandwidth of a link.
"""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda

ROOT = 0


@pgas.jit
def ring_broadcast(data, signal, chunks, turn):
    """Block b forwards chunks b, b + blocks, ...: it waits for the left neighbor's signal, and puts the chunk to the right neighbor."""
    me, n, size = pgas.my_pe(), pgas.n_pes(), data.size // chunks
    right = (me + 1) % n
    for chunk in range(cuda.blockIdx.x, chunks, cuda.gridDim.x):
        if me != ROOT:
            if cuda.threadIdx.x == 0:
                pgas.signal_wait_until(signal, chunk, pgas.EQ, turn)
            cuda.syncthreads()  # the chunk is visible to all threads
        if right != ROOT:
            part = data[chunk * size : (chunk + 1) * size]
            pgas.put_signal_nbi_block(part, part, signal, chunk, turn, pgas.SIGNAL_SET, right)


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 8], help="the first one gives the formula's bandwidth")
options.add_argument("--plot", help="a PNG to draw: times and formula over the number of chunks")
for name, default in {"elements": 4096, "blocks": 1, "threads": 64, "times": 1}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # elements: a multiple of chunks; times: the fastest is reported
args = options.parse_args()

with pgas.init():
    me, n, right = pgas.my_pe(), pgas.n_pes(), True
    expected = np.random.default_rng(1).random(args.elements, np.float32)
    data, signal = pgas.zeros(args.elements, np.float32), pgas.zeros(max(args.chunks), np.uint64)
    turn, unit, measured, formula = 0, 0.0, [], []
    for chunks in args.chunks:
        seconds = []
        for _ in range(1 + args.times):  # the first run includes compilation
            turn += 1  # signals of earlier turns do not match this turn's number
            data.copy_to_device(expected if me == ROOT else np.zeros_like(expected))
            pgas.barrier_all()
            began = time.perf_counter()
            pgas.launch(ring_broadcast, args.blocks, args.threads, (data, signal, chunks, turn))
            pgas.barrier_all()
            seconds.append(time.perf_counter() - began)
            right &= all(pgas.allgather_object(bool((data.copy_to_host() == expected).all())))
        steps = (chunks + n - 2) / chunks  # steps in the formula, in units of bytes / bandwidth, which the first measurement gives
        unit = unit or min(seconds[1:]) / (steps or 1)
        measured.append((chunks, min(seconds[1:])))
        formula.append((chunks, unit * steps))
        if me == 0:
            told = f"{'right' if right else 'WRONG'}, {measured[-1][1] * 1e6:.1f} us, formula {formula[-1][1] * 1e6:.1f} us"
            print(f"ring_broadcast: {n} PEs, {data.nbytes} bytes in {chunks} chunks: {told}")
    if me == 0 and args.plot:
        from pgas.perftests import plot

        curves = [plot.Curve("measured", measured, 0), plot.Curve("N (S + K - 2) / (S B)", formula, 1)]
        place = f"{pgas.info()['machine']}, {pgas.info()['transport']}, {time.strftime('%Y-%m-%d')}"
        details = f"{place}: {n} PEs, {data.nbytes} bytes, {args.blocks} x {args.threads} threads"
        plot.picture(args.plot, "Broadcast around a ring", details, [plot.Panel(curves, "chunks S", "time", "s")])
raise SystemExit(not right)
