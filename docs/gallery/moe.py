"""A mixture-of-experts layer: tokens go to the PEs of their experts and back, with counts from the GPU. ``mpirun -n 4 python moe.py``."""

import argparse
import math
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def moe(out, x, logits, scale, weight, slot, counts, theirs, start, rows, sent, got, back):
    """One kernel on all PEs. Expert e is on PE e // local. Rows of ``sent`` are sorted by expert, those of ``got`` by PE and expert."""
    n, grid, hidden, local = pgas.n_pes(), cuda.cg.this_grid(), x.shape[1], scale.size
    experts, top_k, block, blocks = logits.shape[1], slot.shape[1], cuda.blockIdx.x, cuda.gridDim.x
    for t in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):  # route: one thread per token
        for k in range(top_k):
            best = 0
            for e in range(1, experts):
                if logits[t, e] > logits[t, best]:
                    best = e
            slot[t, k, 0], slot[t, k, 1] = best, cuda.atomic.add(counts, best, 1)  # its expert, and its row there
            weight[t, k], logits[t, best] = 1 / (1 + math.exp(-logits[t, best])), -math.inf
    grid.sync()  # the counts are complete
    if block == 0:
        pgas.alltoall_block(pgas.TEAM_WORLD, theirs, counts)  # theirs[p * local + i]: number of rows from PE p to my expert i
        if cuda.threadIdx.x == 0:
            for e in range(experts):
                start[e + 1] = start[e] + counts[e]
    grid.sync()
    for i in range(cuda.grid(1), x.size * top_k, cuda.gridsize(1)):  # copy every token to its rows
        t, k, j = i // (top_k * hidden), i // hidden % top_k, i % hidden
        sent[start[slot[t, k, 0]] + slot[t, k, 1], j] = x[t, j]
    if cuda.threadIdx.x == 0:  # this block's part of the rows for, and from, every PE
        first = 0
        for p in range(n):
            count, come = start[(p + 1) * local] - start[p * local], 0
            for i in range(local):
                come += theirs[p * local + i]
            rows[block, 0, p] = (count * (block + 1) // blocks - count * block // blocks) * hidden
            rows[block, 1, p] = (start[p * local] + count * block // blocks) * hidden
            rows[block, 2, p] = (come * (block + 1) // blocks - come * block // blocks) * hidden
            rows[block, 3, p] = (first + come * block // blocks) * hidden
            first += come
    grid.sync()
    mine = rows[block]
    pgas.alltoallv_block(pgas.TEAM_WORLD, got, mine[2], mine[3], sent, mine[0], mine[1], block)  # dispatch: each block on its channel
    grid.sync()
    row = 0
    for i in range(n * local):  # the experts: a scale and a ReLU, where a model has its matrices
        for r in range(row + block, row + theirs[i], blocks):
            for j in range(cuda.threadIdx.x, hidden, cuda.blockDim.x):
                got[r, j] = max(np.float32(got[r, j]) * scale[i % local], np.float32(0))
        row += theirs[i]
    grid.sync()
    pgas.alltoallv_block(pgas.TEAM_WORLD, back, mine[0], mine[1], got, mine[2], mine[3], block)  # combine: the reverse
    grid.sync()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        t, j, total = i // hidden, i % hidden, np.float32(0)
        for k in range(top_k):
            total += weight[t, k] * np.float32(back[start[slot[t, k, 0]] + slot[t, k, 1], j])
        out[t, j] = total


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"tokens": 6, "hidden": 8, "experts": 2, "top_k": 2, "blocks": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # tokens, experts: per PE; blocks: at most PGAS_CHANNELS
args = options.parse_args()

with pgas.init():
    me, n, random = pgas.my_pe(), pgas.n_pes(), np.random.default_rng(pgas.my_pe())
    experts, most = args.experts * n, args.tokens * args.top_k
    x = pgas.array(random.standard_normal((args.tokens, args.hidden)), "bfloat16")
    scores = random.standard_normal((args.tokens, experts), np.float32)
    scales = 1 + np.arange(experts, dtype=np.float32) / 4
    scale = pgas.array(scales[me * args.experts : (me + 1) * args.experts])
    out, sent, back = (pgas.zeros((rows, args.hidden), "bfloat16") for rows in (args.tokens, most, most))
    got = pgas.zeros((most * n, args.hidden), "bfloat16")  # room for all tokens of all PEs
    logits, weight = pgas.array(scores), pgas.zeros((args.tokens, args.top_k), np.float32)
    slot = pgas.zeros((args.tokens, args.top_k, 2), np.int64)
    counts, theirs, start, rows = (pgas.zeros(shape, np.int64) for shape in (experts, experts, experts + 1, (args.blocks, 4, n)))
    for _ in range(2):  # the first run includes compilation
        logits.copy_to_device(scores), counts.copy_to_device(np.zeros(experts, np.int64))
        pgas.barrier_all()
        began = time.perf_counter()
        pgas.launch(moe, args.blocks, args.threads, (out, x, logits, scale, weight, slot, counts, theirs, start, rows, sent, got, back))
        pgas.barrier_all()
        seconds = time.perf_counter() - began
    tokens, expected = x.copy_to_host().astype(np.float32), np.zeros(x.shape, np.float32)
    for t in range(args.tokens):
        chosen = np.argsort(-scores[t])[: args.top_k]
        expected[t] = sum(np.maximum(tokens[t] * scales[e], 0) / (1 + np.exp(-scores[t, e])) for e in chosen)
    right = all(pgas.allgather_object(bool(np.allclose(out.copy_to_host().astype(np.float32), expected, rtol=2e-2, atol=1e-2))))
    if me == 0:
        told = f"{args.tokens * n} tokens, {experts} experts, top {args.top_k}: {'right' if right else 'WRONG'}"
        print(f"moe: {n} PEs, {told}, {seconds * 1e3:.2f} ms")
raise SystemExit(not right)
