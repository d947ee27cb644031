"""A sum of large arrays of all PEs by several blocks in one kernel: ``mpirun -n 4 python large_allreduce.py --blocks 1 4``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def allreduce(team, dest, source, rounds):
    """Each block passes the whole arrays and moves one part of them, on its own channel."""
    block = cuda.blockIdx.x
    for _ in range(rounds):
        pgas.reduce_block(team, dest, source, pgas.SUM, block, (block, cuda.gridDim.x))


@pgas.jit
def mean(team, dest, source):
    """The same once, then a step that needs all parts: dest becomes the mean of all PEs."""
    grid, block = cuda.cg.this_grid(), cuda.blockIdx.x
    pgas.reduce_block(team, dest, source, pgas.SUM, block, (block, cuda.gridDim.x))
    grid.sync()  # the parts of all blocks are complete on this PE
    for i in range(cuda.grid(1), dest.size, cuda.gridsize(1)):
        dest[i] /= pgas.team_n_pes(team)


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--blocks", type=int, nargs="+", default=[1, 2], help="numbers of blocks to compare")
for name, default in {"elements": 4099, "threads": 64, "rounds": 2, "times": 1}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # rounds: calls in a launch; times: the fastest launch is reported
args = options.parse_args()

with pgas.init():
    n = pgas.n_pes()
    team = pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n, channels=max(args.blocks))  # TEAM_WORLD has PGAS_CHANNELS
    of_all = [np.random.default_rng(pe).random(args.elements, np.float32) for pe in range(n)]
    expected = sum(of_all)
    source, dest = pgas.array(of_all[pgas.my_pe()]), pgas.zeros(args.elements, np.float32)
    everywhere = True
    for blocks in args.blocks:
        dest.copy_to_device(np.zeros_like(expected))
        seconds = []
        for _ in range(1 + args.times):  # the first run includes compilation
            pgas.barrier_all()
            began = time.perf_counter()
            pgas.launch(allreduce, blocks, args.threads, (team, dest, source, args.rounds))
            pgas.barrier_all()
            seconds.append((time.perf_counter() - began) / args.rounds)
        right = np.allclose(dest.copy_to_host(), expected, rtol=1e-5)
        pgas.barrier_all()  # every PE has read dest
        pgas.launch(mean, blocks, args.threads, (team, dest, source))
        pgas.barrier_all()
        right = all(pgas.allgather_object(right and np.allclose(dest.copy_to_host(), expected / n, rtol=1e-5)))
        everywhere &= right
        if pgas.my_pe() == 0:
            best = min(seconds[1:])
            told = f"{best * 1e6:.1f} us, {dest.nbytes / best / 1e9:.3g} GB/s"
            print(f"large_allreduce: {n} PEs, {dest.nbytes} bytes, {blocks} blocks: {'right' if right else 'WRONG'}, {told}")
    pgas.team_destroy(team)
raise SystemExit(not everywhere)
