"""A PyTorch layer with a distributed weight; a kernel adds results, bias, and ReLU. ``torchrun --nproc-per-node 4 pytorch.py``."""

import argparse
import time

import numpy as np
import torch

import pgas
from pgas import cuda


@pgas.jit
def add_up(y, partial, bias, inbox, signal, turn):
    """Store relu(bias + the sum of partials) in y. Block b computes rows b, b + blocks, ... PE p sends to ``inbox[turn % 2, p]``."""
    me, n, thread, rows, columns = pgas.my_pe(), pgas.n_pes(), cuda.threadIdx.x, y.shape[0], y.shape[1]
    for r in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        for k in range(1, n):
            pgas.put_signal_nbi_block(inbox[turn % 2, me, r], partial[r], signal, (me, r), turn, pgas.SIGNAL_SET, (me + k) % n)
    for r in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        for p in range(thread, n, cuda.blockDim.x):
            if p != me:
                pgas.signal_wait_until(signal, (p, r), pgas.GE, turn)  # a PE may be one turn ahead
        cuda.syncthreads()  # the row from every PE is visible to all threads
        for j in range(thread, columns, cuda.blockDim.x):
            total = np.float32(bias[j])
            for p in range(n):  # in the same order on every PE, so results are bitwise identical
                total += np.float32(partial[r, j]) if p == me else np.float32(inbox[turn % 2, p, r, j])
            y[r, j] = max(total, np.float32(0))
    if thread == 0:
        pgas.quiet()  # partial may be written again


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
for name, default in {"tokens": 6, "inner": 8, "hidden": 16, "blocks": 2, "threads": 32, "times": 3}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # inner: rows of the weight per PE; times: the last one is reported
args = options.parse_args()

with pgas.init():
    me, n, right, dtype, random = pgas.my_pe(), pgas.n_pes(), True, getattr(torch, args.dtype), np.random.default_rng(1)
    mine = slice(me * args.inner, (me + 1) * args.inner)
    whole = random.standard_normal((n * args.inner, args.hidden), np.float32)  # the whole weight, for the check
    biases = random.standard_normal(args.hidden, np.float32)
    y, partial = pgas.zeros((args.tokens, args.hidden), dtype), pgas.zeros((args.tokens, args.hidden), dtype)
    inbox, signal = pgas.zeros((2, n, args.tokens, args.hidden), dtype), pgas.zeros((n, args.tokens), np.uint64)
    bias = pgas.zeros(args.hidden, dtype)
    y_tensor, partial_tensor, bias_tensor = torch.from_dlpack(y), torch.from_dlpack(partial), torch.from_dlpack(bias)  # the same memory
    device = y_tensor.device  # the GPU that pgas assigned to this PE; in the simulator, the CPU
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else 0
    weight = torch.as_tensor(whole[mine]).to(device, dtype)
    bias_tensor.copy_(torch.as_tensor(biases))
    for turn in range(1, args.times + 1):  # the first turn includes compilation
        tokens = random.standard_normal((args.tokens, n * args.inner), np.float32)
        x = torch.as_tensor(tokens[:, mine]).to(device, dtype)
        pgas.barrier_all()  # only for the timing; the layer needs no barrier
        began = time.perf_counter()
        torch.mm(x, weight, out=partial_tensor)  # PyTorch writes to the symmetric heap
        pgas.launch(add_up, args.blocks, args.threads, (y, partial, bias, inbox, signal, turn), stream)
        pgas.synchronize()
        seconds = time.perf_counter() - began
        expected = np.maximum(tokens @ whole + biases, 0)
        most = 4 * torch.finfo(dtype).eps * (abs(tokens) @ abs(whole) + abs(biases))  # maximum accumulated rounding error
        right &= all(pgas.allgather_object(bool((abs(y_tensor.float().cpu().numpy() - expected) <= most).all())))
    if me == 0:
        told = f"{args.tokens} x {n * args.inner} times {n * args.inner} x {args.hidden}, {args.dtype}"
        print(f"pytorch: {n} PEs, {told}: {'right' if right else 'WRONG'}, {seconds * 1e6:.1f} us")
raise SystemExit(not right)
