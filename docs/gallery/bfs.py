"""Breadth-first search: all PEs fill a queue on every PE, and the kernel detects termination: ``mpirun -n 4 python bfs.py``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def bfs(distance, neighbors, queue, length, total):
    """Vertex v is number v % distance.size of PE v // distance.size. ``queue[0]`` contains the start if this PE owns it."""
    grid, vertices, degree, level = cuda.cg.this_grid(), distance.size, neighbors.shape[1], 0
    while total[0] > 0:
        now, later = level % 2, 1 - level % 2
        for i in range(cuda.grid(1), length[now] * degree, cuda.gridsize(1)):
            v = neighbors[queue[now, i // degree], i % degree]
            pe, v = v // vertices, v % vertices
            if pgas.atomic_compare_swap(distance, v, -1, level + 1, pe) == -1:  # this thread is the first to reach v
                pgas.p(queue, (later, pgas.atomic_fetch_inc(length, later, pe)), v, pe)  # into a position that only this thread has
        grid.sync()
        if cuda.blockIdx.x == 0:
            if cuda.threadIdx.x == 0:
                length[now] = 0  # for the level after the next; no PE adds to it before the barrier
            pgas.barrier_all_block()  # all queues are complete
            pgas.reduce_block(pgas.TEAM_WORLD, total, length[later : later + 1], pgas.SUM)
        grid.sync()  # total is visible to all blocks
        level += 1


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"vertices": 24, "degree": 2, "blocks": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # vertices: per PE
args = options.parse_args()

with pgas.init():
    me, n, vertices = pgas.my_pe(), pgas.n_pes(), args.vertices
    graph = np.random.default_rng(1).integers(0, vertices * n, (vertices * n, args.degree))  # neighbors of each vertex
    distance, neighbors = pgas.zeros(vertices, np.int64), cuda.to_device(graph[me * vertices : (me + 1) * vertices])
    queue, length, total = pgas.zeros((2, vertices), np.int64), pgas.zeros(2, np.int64), pgas.zeros(1, np.int64)
    for _ in range(2):  # the first run includes compilation
        first = np.where(np.arange(vertices) + me * vertices == 0, 0, -1)  # the search starts at vertex 0 on PE 0
        distance.copy_to_device(first), length.copy_to_device(np.array([me == 0, 0], np.int64)), total.copy_to_device(np.ones(1, np.int64))
        queue.copy_to_device(np.zeros((2, vertices), np.int64))
        pgas.barrier_all()
        began = time.perf_counter()
        pgas.launch(bfs, args.blocks, args.threads, (distance, neighbors, queue, length, total))
        pgas.barrier_all()
        seconds = time.perf_counter() - began
    expected, frontier, level = np.full(vertices * n, -1), np.array([0]), 0
    while frontier.size:
        expected[frontier] = level
        frontier, level = np.unique(graph[frontier]), level + 1
        frontier = frontier[expected[frontier] < 0]
    right = all(pgas.allgather_object(bool((distance.copy_to_host() == expected[me * vertices : (me + 1) * vertices]).all())))
    if me == 0:
        reached, edges = (expected >= 0).sum(), (expected >= 0).sum() * args.degree
        told = f"{reached} of {vertices * n} vertices in {level} levels: {'right' if right else 'WRONG'}"
        print(f"bfs: {n} PEs, {told}, {edges / seconds / 1e6:.4f} million edges a second")
raise SystemExit(not right)
