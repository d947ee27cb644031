"""Expert-parallel dispatch and combine: each token goes once to every PE that has one of its experts. ``mpirun -n 4 python ep.py``."""

import argparse
import socket
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit(device=True)
def wait_for_all(sig, turn):
    """Wait for this turn's signals of all blocks of all PEs; what they have put before is then here."""
    for i in range(cuda.threadIdx.x, sig.size, cuda.blockDim.x):
        pgas.signal_wait_until(sig, (i // sig.shape[1], i % sig.shape[1]), pgas.GE, turn << 32)
    cuda.syncthreads()


@pgas.jit(launch_bounds=512)
def dispatch(got, got_routes, sig, x, routes, local, start, turns):
    """Row r of got[turn % 2, p] is the r-th of PE p's tokens with an expert here; sig[p, -1] has their number in its low half.

    routes[t]: the experts of token t, their weights (the bits of float32), and t. Expert e is on PE e // local. Buffers alternate. A PE
    that sends in turn t + 2 has received all signals of turn t + 1, which PEs send after they have used turn t.
    """
    me, n, tokens, top_k = pgas.my_pe(), pgas.n_pes(), x.shape[0], routes.shape[1] // 2
    block, blocks, thread, lane = cuda.blockIdx.x, cuda.gridDim.x, cuda.threadIdx.x, cuda.threadIdx.x % 32
    warp, warps = thread // 32, cuda.blockDim.x // 32
    first, last = tokens * block // blocks, tokens * (block + 1) // blocks  # this block's tokens
    masks, rows, count = cuda.shared.array(1024, np.int32), cuda.shared.array(8192, np.int32), cuda.shared.array(32, np.int32)
    for turn in range(start, start + turns):
        half = turn % 2
        if thread < n:
            count[thread] = 0
        cuda.syncthreads()
        for begin in range(warp * 32, last, warps * 32):  # the PEs of each token, and how many earlier tokens go to each PE
            t, mask = begin + lane, 0
            if t < last:
                for k in range(top_k):
                    mask |= 1 << (routes[t, k] // local)
                if t >= first:
                    masks[t - first] = mask
                    mask = 0
            for p in range(n):
                before = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, mask >> p & 1))
                if lane == 0 and before:
                    cuda.atomic.add(count, p, before)
        cuda.syncthreads()
        if thread < n:
            for i in range(last - first):
                goes = masks[i] >> thread & 1
                rows[i * n + thread] = count[thread] if goes else -1
                count[thread] += goes
        cuda.syncthreads()
        for i in range(warp, (last - first) * n, warps):  # a warp copies a token to a PE; neighboring warps copy to different PEs
            t, p = first + i // n, (me + i // n + i) % n
            row = rows[i // n * n + p]
            if row >= 0:
                pgas.put_nbi_warp(got[half, me, row], x[t], p)
                pgas.put_nbi_warp(got_routes[half, me, row], routes[t], p)
        cuda.syncthreads()
        if thread < n:
            pgas.fence()  # the puts of the whole block come before its signal
            pgas.signal_op(sig, (me, block), turn << 32 | count[thread], pgas.SIGNAL_SET, thread)
        wait_for_all(sig, turn)


@pgas.jit(launch_bounds=512)
def combine(out, back, done, y, got_routes, sig, routes, local, start, turns):
    """Send row r of y[p] back to PE p, which adds up each token's rows in the order of the PEs."""
    (tokens, hidden), top_k, me, n = out.shape, routes.shape[1] // 2, pgas.my_pe(), pgas.n_pes()
    block, blocks, thread, threads = cuda.blockIdx.x, cuda.gridDim.x, cuda.threadIdx.x, cuda.blockDim.x
    warp, warps = (block * threads + thread) // 32, blocks * threads // 32
    for turn in range(start, start + turns):
        half = turn % 2
        for i in range(n):
            p = (me + i) % n
            for row in range(warp, np.int64(sig[p, blocks - 1]) & 0xFFFFFFFF, warps):
                pgas.put_nbi_warp(back[half, me, got_routes[p, row, 2 * top_k]], y[p, row], p)
        cuda.syncthreads()
        if thread < n:
            pgas.fence()
            pgas.signal_op(done, (me, block), turn << 32, pgas.SIGNAL_SET, thread)
        wait_for_all(done, turn)
        for t in range(block, tokens, blocks):
            mask = 0
            for k in range(top_k):
                mask |= 1 << (routes[t, k] // local)
            for j in range(thread, hidden, 4 * threads):  # loads of four elements are on their way together
                j1, j2, j3 = min(j + threads, hidden - 1), min(j + 2 * threads, hidden - 1), min(j + 3 * threads, hidden - 1)
                a = b = c = d = np.float32(0)
                for p in range(n):
                    if mask >> p & 1:
                        a += np.float32(back[half, p, t, j])
                        b += np.float32(back[half, p, t, j1])
                        c += np.float32(back[half, p, t, j2])
                        d += np.float32(back[half, p, t, j3])
                out[t, j3], out[t, j2], out[t, j1], out[t, j] = d, c, b, a


@pgas.jit
def experts(y, got, routes, weights, sig, local):
    """A stand-in for this PE's experts: y has the sum of a row times the weights of its experts here. weights: routes as float32."""
    me, top_k = pgas.my_pe(), routes.shape[2] // 2
    for p in range(pgas.n_pes()):
        for row in range(cuda.blockIdx.x, np.int64(sig[p, sig.shape[1] - 1]) & 0xFFFFFFFF, cuda.gridDim.x):
            weight = np.float32(0)
            for k in range(top_k):
                if routes[p, row, k] // local == me:
                    weight += weights[p, row, top_k + k]
            for j in range(cuda.threadIdx.x, y.shape[2], cuda.blockDim.x):
                y[p, row, j] = np.float32(got[p, row, j]) * weight


def peer(data, ids, weights, local, turns):
    """Return the seconds of dispatch and combine by all_to_all_single over NCCL, with the permutations that it needs."""
    import torch
    from torch import distributed

    me, n = pgas.my_pe(), pgas.n_pes()
    free = socket.create_server(("127.0.0.1", 0)) if me == 0 else None
    port = pgas.broadcast_object(free and free.getsockname()[1])
    if free:
        free.close()
    torch.cuda.set_device(int(np.asarray(cuda.get_current_device().id)))
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=me, world_size=n)
    to = [np.flatnonzero((ids // local == p).any(1)) for p in range(n)]
    sends = [len(tokens) for tokens in to]
    receives = [row[me] for row in pgas.allgather_object(sends)]  # known beforehand: no exchange of counts, and no wait of the host
    x, order = torch.as_tensor(data).cuda(), torch.as_tensor(np.concatenate(to)).cuda()
    x = x if x.dtype == torch.uint8 else x.bfloat16()
    got, out = x.new_empty((sum(receives), x.shape[1])), torch.zeros(data.shape[0], args.hidden, device="cuda")
    y = torch.empty((sum(receives), args.hidden), dtype=torch.bfloat16, device="cuda")
    back = y.new_empty((len(order), args.hidden))

    def dispatch():
        distributed.all_to_all_single(got, x.index_select(0, order), receives, sends)

    def combine():
        distributed.all_to_all_single(back, y, sends, receives)
        out.zero_().index_add_(0, order, back.float())
        out.bfloat16()

    def seconds(step):
        for count in (3, turns):
            torch.cuda.synchronize(), distributed.barrier(), torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / turns

    return seconds(dispatch), seconds(combine)


options = argparse.ArgumentParser(description=__doc__)
small = pgas.SIMULATOR
for name, default in {"tokens": 128, "hidden": 7168, "experts": 256, "top_k": 8, "blocks": 32, "threads": 512, "turns": 200}.items():
    less = {"tokens": 11, "hidden": 96, "experts": 8, "top_k": 3, "blocks": 2, "threads": 64, "turns": 2}[name]
    options.add_argument(f"--{name}", type=int, default=less if small else default)  # tokens: per PE; experts: of all PEs
options.add_argument("--fp8", action="store_true", help="payload of 8 bits with a float32 scale for 128 elements")
options.add_argument("--peer", action="store_true", help="measure all_to_all_single of PyTorch over NCCL")
args = options.parse_args()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    local, tokens, width = -(-args.experts // n), args.tokens, args.hidden + args.hidden // 128 * 4 if args.fp8 else args.hidden
    if n > 32 or (tokens // args.blocks + 1) * n > 8192 or tokens // args.blocks >= 1024:
        raise SystemExit("ep: at most 32 PEs, 1,023 tokens per block, and 8,192 pairs of a block's token and a PE")

    def tokens_of(pe):
        """Return the tokens, experts, and weights of a PE."""
        random = np.random.default_rng(pe)
        data = random.integers(0, 100, (tokens, width)).astype(np.uint8 if args.fp8 else np.float32)
        ids = np.argsort(random.random((tokens, args.experts)))[:, : args.top_k]
        return data, ids.astype(np.int32), random.random((tokens, args.top_k), np.float32)

    data, route, shares = tokens_of(me)
    x = pgas.array(data, np.uint8 if args.fp8 else "bfloat16")
    routes = pgas.array(np.concatenate([route, shares.view(np.int32), np.arange(tokens, dtype=np.int32)[:, None]], 1))
    got, got_routes = pgas.zeros((2, n, tokens, width), x.dtype), pgas.zeros((2, n, *routes.shape), np.int32)
    y, back = pgas.zeros((n, tokens, args.hidden), "bfloat16"), pgas.zeros((2, n, tokens, args.hidden), "bfloat16")
    out, sig, done = pgas.zeros((tokens, args.hidden), "bfloat16"), *(pgas.zeros((n, args.blocks), np.uint64) for _ in range(2))
    times, start = [0.0, 0.0], 1
    for turns in (1, args.turns):  # the first time compiles
        half = (start + turns - 1) % 2
        for step, (kernel, arguments) in enumerate((
            (dispatch, (got, got_routes, sig, x, routes, local)),
            (combine, (out, back, done, y, got_routes[half], sig, routes, local)),
        )):  # fmt: skip
            pgas.barrier_all()
            began = time.perf_counter()
            pgas.launch(kernel, args.blocks, args.threads, (*arguments, start, turns))
            pgas.synchronize()
            times[step] = (time.perf_counter() - began) / turns
            if step == 0:
                experts[args.blocks, 256](y, got[half], got_routes[half], got_routes.view(np.float32)[half], sig, local)
        start += turns
    mine = np.stack([(route // local == p).any(1) for p in range(n)])  # [PE, token]
    scaled = [np.where(route // local == p, shares, 0).sum(1, np.float32) for p in range(n)]
    expected = sum(np.where(mine[p][:, None], data[:, : args.hidden].astype(np.float32) * scaled[p][:, None], 0) for p in range(n))
    right = np.allclose(out.copy_to_host().astype(np.float32), expected, rtol=2e-2, atol=1e-2)
    for p in range(n):
        theirs, choice, _ = tokens_of(p)
        wanted = theirs[(choice // local == me).any(1)]
        right = right and np.array_equal(got[half, p].copy_to_host()[: len(wanted)].astype(np.float32), wanted.astype(np.float32))
    away = mine.sum() - mine[me].sum()  # rows that leave this PE
    everyone = pgas.allgather_object((right, *times, *(peer(data, route, shares, local, args.turns) if args.peer else ())))
    right = all(row[0] for row in everyone)
    if me == 0:
        what = f"{n} PEs, {tokens} tokens each, top {args.top_k}, {'8 bits' if args.fp8 else 'bfloat16'}, {args.blocks} blocks"
        for i, name in enumerate(("ep", "NCCL")[: len(everyone[0]) // 2]):
            seconds = [max(row[1 + 2 * i + step] for row in everyone) for step in (0, 1)]
            rates = [away * width * x.dtype.itemsize / seconds[0] / 1e9, away * args.hidden * 2 / seconds[1] / 1e9]
            times = (f"{step} {s * 1e6:.1f} us ({r:.0f} GB/s)" for step, s, r in zip(("dispatch", "combine"), seconds, rates, strict=True))
            print(f"{name}: {what}: {'right' if right else 'WRONG'}, {', '.join(times)}")
raise SystemExit(not right)
