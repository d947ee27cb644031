"""A histogram whose bins are distributed over all PEs, with and without counting locally first: ``mpirun -n 4 python histogram.py``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def each(bins, samples, counts):
    """Every sample is an atomic on the PE that owns its bin. Bin b is element b % bins.size of PE b // bins.size."""
    for i in range(cuda.grid(1), samples.size, cuda.gridsize(1)):
        pgas.atomic_inc(bins, samples[i] % bins.size, samples[i] // bins.size)


@pgas.jit
def at_home(bins, samples, counts):
    """Samples are counted in this GPU's memory; then each bin with samples is one atomic on the PE that owns it."""
    for i in range(cuda.grid(1), samples.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, samples[i], 1)
    cuda.cg.this_grid().sync()  # all samples are counted
    for i in range(cuda.grid(1), counts.size, cuda.gridsize(1)):
        b = (i + pgas.my_pe() * bins.size) % counts.size  # each PE begins with its own bins
        if counts[b]:
            pgas.atomic_add(bins, b % bins.size, counts[b], b // bins.size)


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"bins": 8, "samples": 200, "blocks": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # per PE
args = options.parse_args()

with pgas.init():
    me, n, right, told = pgas.my_pe(), pgas.n_pes(), True, ""
    size = args.bins * n
    samples = [np.random.default_rng(pe).binomial(size - 1, 0.5, args.samples) for pe in range(n)]  # those of all PEs, for the check
    expected = np.bincount(np.concatenate(samples), minlength=size)[me * args.bins : (me + 1) * args.bins]
    bins, mine = pgas.zeros(args.bins, np.int64), cuda.to_device(samples[me])
    for kernel, name in ((each, "each"), (at_home, "at home")):
        for _ in range(2):  # the first run includes compilation
            counts = cuda.to_device(np.zeros(size, np.int64))
            bins.copy_to_device(np.zeros(args.bins, np.int64))
            pgas.barrier_all()
            began = time.perf_counter()
            pgas.launch(kernel, args.blocks, args.threads, (bins, mine, counts))
            pgas.barrier_all()  # all counts have arrived
            seconds = time.perf_counter() - began
        right &= all(pgas.allgather_object(bool((bins.copy_to_host() == expected).all())))
        told += f", {name} {seconds * 1e3:.2f} ms"
    if me == 0:
        print(f"histogram: {n} PEs, {args.samples * n} samples, {size} bins: {'right' if right else 'WRONG'}{told}")
raise SystemExit(not right)
