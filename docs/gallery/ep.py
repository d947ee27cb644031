"""Expert-parallel dispatch and combine: tokens go to the PEs of their experts, and sums come back. ``mpirun -n 4 python ep.py``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda

MOST_PES, PIECE, BATCH, DEPTH, FULL = 64, 4096, 16, 8, 0xFFFFFFFF  # bytes that a warp puts, tokens between signals, loads in flight


@pgas.jit(device=True)
def as_float(bits):
    """Return the float32 of a bfloat16, the low bits of an integer."""
    return np.uint32((bits & 0xFFFF) << 16).view(np.float32)


@pgas.jit(device=True)
def as_bits(value):
    """Return the bits of a float32 rounded to bfloat16."""
    bits = np.int64(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0


@pgas.jit(device=True)
def earlier(masks, first, t, pe):
    """Return how many of the tokens first to t - 1 go to a PE. Called by all threads of a warp."""
    count = 0
    for start in range(first, t, 32):
        count += cuda.popc(cuda.ballot_sync(FULL, start + cuda.laneid < t and masks[start + cuda.laneid] >> pe & 1))
    return count


@pgas.jit(launch_bounds=512)
def dispatch(recv, ends, arrived, rounds, masks, send, ids, weights, at, local):
    """Send each token once to each PE that has one of its experts; expert e is on PE e // local, an id of -1 is none.

    Row r of recv[s] is the r-th token from PE s: data, and from word ``at`` on the token's number, ids, and weights. A signal of each block
    has the round, so that it needs no reset, and the number of rows up to the block's last, which becomes ends[s, block].
    """
    me, n, block, blocks, turn = pgas.my_pe(), pgas.n_pes(), cuda.blockIdx.x, cuda.gridDim.x, rounds[cuda.blockIdx.x] + 1
    thread, threads, warp, warps = cuda.threadIdx.x, cuda.blockDim.x, cuda.threadIdx.x // 32, cuda.blockDim.x // 32
    (tokens, top_k), width, span = ids.shape, send.shape[1], PIECE // 4
    first, last, pieces = tokens * block // blocks, tokens * (block + 1) // blocks, (width + span - 1) // span
    before, until = cuda.shared.array(MOST_PES, np.int32), cuda.shared.array(MOST_PES, np.int32)  # rows before this block's, and with them
    if thread < n:
        before[thread] = until[thread] = 0
    cuda.syncthreads()
    for start in range(32 * warp, last, 32 * warps):  # a block reads the ids of all tokens before its own: 1% of the bytes that it copies
        t, mask = start + cuda.laneid, 0  # mask: PEs that the token goes to
        if t < last:
            for k in range(top_k):
                if ids[t, k] >= 0:
                    mask |= 1 << np.int64(np.uint32(ids[t, k]) // np.uint32(local))
        if first <= t < last:
            masks[t] = mask
        of_others = cuda.ballot_sync(FULL, t < first)
        for pe in range(n):
            going = cuda.ballot_sync(FULL, mask >> pe & 1)
            if cuda.laneid == 0 and going:
                cuda.atomic.add(before, pe, cuda.popc(going & of_others & FULL))  # of the low 32 bits
                cuda.atomic.add(until, pe, cuda.popc(going))
    for i in range(thread, (last - first) * top_k, threads):
        t, k = first + i // top_k, i % top_k
        send[t, at], send[t, at + 1 + k], send[t, at + 1 + top_k + k] = t, ids[t, k], weights[t, k]
    cuda.syncthreads()
    for item in range(warp, (last - first) * pieces, warps):
        t, begin, pe = first + item // pieces, item % pieces * span, me
        end, mask = min(begin + span, width), masks[t]
        for _ in range(n):  # this PE is the last
            pe = pe + 1 if pe + 1 < n else 0
            if mask >> pe & 1:
                pgas.put_nbi_warp(recv[me, before[pe] + earlier(masks, first, t, pe), begin:end], send[t, begin:end], pe)
    cuda.syncthreads()  # so that the fence covers what all threads have put
    if thread < n:
        pgas.fence()
        pgas.signal_op(arrived, (me, block), turn << 32 | until[thread], pgas.SIGNAL_SET, thread)
        ends[thread, block] = np.int64(pgas.signal_wait_until(arrived, (thread, block), pgas.GE, turn << 32)) & 0xFFFFFFFF
        pgas.flush()  # send may be overwritten
        rounds[block] = turn


@pgas.jit
def expert(y, recv, floats, halves, gains, ends, at, local, top_k):
    """Set y[s, r] to the weighted sum of the outputs of this PE's experts for recv[s, r]: gains, where a model has its matrices."""
    for s in range(y.shape[0]):
        for r in range(cuda.blockIdx.x, ends[s, ends.shape[1] - 1], cuda.gridDim.x):
            gain = np.float32(0)
            for k in range(at + 1, at + 1 + top_k):
                if recv[s, r, k] >= 0 and recv[s, r, k] // local == pgas.my_pe():
                    gain += floats[s, r, k + top_k] * gains[recv[s, r, k]]
            for j in range(cuda.threadIdx.x, y.shape[2], cuda.blockDim.x):
                y[s, r, j] = as_bits(as_float(halves[s, r, j]) * gain)


@pgas.jit(device=True)
def add(out, back, masks, t, first):
    """Add up the words first, first + 32, ... of a token's rows, DEPTH words, each of four bfloat16."""
    words, sums = cuda.local.array(DEPTH, np.int64), cuda.local.array((DEPTH, 4), np.float32)
    for i in range(DEPTH):
        sums[i, 0], sums[i, 1], sums[i, 2], sums[i, 3] = 0, 0, 0, 0
    for pe in range(back.shape[0]):
        if masks[t] >> pe & 1:
            for i in range(DEPTH):
                words[i] = back[pe, t, min(first + 32 * i, out.shape[1] - 1)]
            for i in range(DEPTH):
                for j in range(4):
                    sums[i, j] += as_float(words[i] >> 16 * j)
    for i in range(DEPTH):
        if first + 32 * i < out.shape[1]:
            out[t, first + 32 * i] = as_bits(sums[i, 0]) | as_bits(sums[i, 1]) << 16 | as_bits(sums[i, 2]) << 32 | as_bits(sums[i, 3]) << 48


@pgas.jit(launch_bounds=512)
def combine(out, back, arrived, rounds, masks, y, recv, ends, at):
    """Send the rows of y back to back[this PE, token] on the tokens' PEs, and add the rows of this PE's tokens in the order of PEs.

    A block sends back what the block of its number sent here, and adds a batch of its tokens while the next is under way; row r of a block
    is of its token r or a later one. No row is overwritten before it was read: PE s is in its next dispatch() only after all blocks of all
    PEs signaled it here, having read recv[s]; no PE is in its next combine() before PE s was in its next dispatch(), having read back.
    """
    me, n, block, blocks, turn = pgas.my_pe(), pgas.n_pes(), cuda.blockIdx.x, cuda.gridDim.x, rounds[cuda.blockIdx.x] + 1
    thread, warp, warps = cuda.threadIdx.x, cuda.threadIdx.x // 32, cuda.blockDim.x // 32
    (tokens, words), most, span, depth = out.shape, 0, PIECE // 8, 32 * DEPTH
    first, last = tokens * block // blocks, tokens * (block + 1) // blocks
    pieces, parts = (words + span - 1) // span, (words + depth - 1) // depth
    starts, counts = cuda.shared.array(MOST_PES, np.int32), cuda.shared.array(MOST_PES, np.int32)
    if thread < n:
        starts[thread] = ends[thread, block - 1] if block else 0
        counts[thread] = ends[thread, block] - starts[thread]
    cuda.syncthreads()
    for s in range(n):
        most = max(most, counts[s])
    for batch in range(0, max(most, last - first + BATCH), BATCH):
        for item in range(warp, min(most - batch, BATCH) * pieces, warps):
            r, begin, s = batch + item // pieces, item % pieces * span, me
            end = min(begin + span, words)
            for _ in range(n):
                s = s + 1 if s + 1 < n else 0
                if r < counts[s]:
                    pgas.put_nbi_warp(back[me, recv[s, starts[s] + r, at], begin:end], y[s, starts[s] + r, begin:end], s)
        cuda.syncthreads()
        if thread < n and (batch == 0 or batch < counts[thread]):
            done = batch + BATCH if batch + BATCH < counts[thread] else 0x7FFFFFFF
            pgas.fence()
            pgas.signal_op(arrived, (me, block), turn << 32 | done, pgas.SIGNAL_SET, thread)
        begin, end = first + batch - BATCH, min(first + batch, last)
        if batch > 0 and begin < end:
            if thread < n:
                pgas.signal_wait_until(arrived, (thread, block), pgas.GE, turn << 32 | batch)
            cuda.syncthreads()
            for item in range(warp, (end - begin) * parts, warps):
                add(out, back, masks, begin + item // parts, item % parts * depth + cuda.laneid)
    if thread < n:  # waits also in a block without tokens
        pgas.signal_wait_until(arrived, (thread, block), pgas.GE, turn << 32)
        pgas.flush()  # y may be overwritten
        rounds[block] = turn


def main():
    """Exchange tokens twice, and check the sums."""
    options = argparse.ArgumentParser(description=__doc__)  # tokens choose the first ``used`` experts; fewer: tokens of each next PE
    for name, value in {"tokens": 12, "hidden": 256, "top_k": 2, "experts": 12, "used": 12, "fewer": 0, "blocks": 2, "threads": 64}.items():
        options.add_argument(f"--{name}", type=int, default=value)
    args = options.parse_args()
    with pgas.init():
        me, n, most, random = pgas.my_pe(), pgas.n_pes(), max(args.tokens, 1), np.random.default_rng(pgas.my_pe())
        tokens, at, words, local = max(args.tokens - args.fewer * me, 0), args.hidden // 2, args.hidden // 4, args.experts // n
        x, factors = random.standard_normal((most, args.hidden)).astype("bfloat16"), 1 + np.arange(args.experts, dtype=np.float32) % 4 / 4
        chosen = np.argsort(random.random((most, args.used)))[:, : args.top_k].astype(np.int32)
        shares = random.integers(1, 17, chosen.shape).astype(np.float32) / 16  # with few bits, so that sums have no rounding errors
        ids, weights, gains, masks = pgas.array(chosen), pgas.array(shares.view(np.int32)), pgas.array(factors), pgas.zeros(most, np.int64)
        send, recv = (pgas.zeros((*shape, at + (2 * args.top_k + 4) // 4 * 4), np.int32) for shape in ((most,), (n, most)))
        y, back, out = (pgas.zeros((*shape, words), np.int64) for shape in ((n, most), (n, most), (most,)))
        arrived, rounds = pgas.zeros((2, n, args.blocks), np.uint64), pgas.zeros((2, args.blocks), np.int64)
        ends, (floats, halves) = pgas.zeros((n, args.blocks), np.int32), (recv.view(kind) for kind in (np.float32, np.int16))
        send[:, :at] = x.view(np.int32)
        of_dispatch = recv, ends, arrived[0], rounds[0], masks, send, ids[:tokens], weights[:tokens], at, local
        of_expert = y.view(np.int16), recv, floats, halves, gains, ends, at, local, ids.shape[1]
        of_combine = out[:tokens], back, arrived[1], rounds[1], masks, y, recv, ends, at
        for _ in range(2):  # the first run includes compilation
            pgas.barrier_all()
            began = time.perf_counter()
            for kernel, arguments in ((dispatch, of_dispatch), (expert, of_expert), (combine, of_combine)):
                pgas.launch(kernel, args.blocks, args.threads, arguments)
            pgas.barrier_all()
            seconds = time.perf_counter() - began
        of_pes = [np.where(chosen // local == pe, shares * factors[chosen], 0).sum(axis=1, keepdims=True) for pe in range(n)]
        total = sum((x.astype(np.float32) * gain).astype(x.dtype).astype(np.float32) for gain in of_pes)
        right = all(pgas.allgather_object(bool((out.copy_to_host().view(x.dtype)[:tokens] == total[:tokens].astype(x.dtype)).all())))
        if me == 0:
            told = f"{n} PEs, {args.tokens} tokens each, {args.experts} experts, top {args.top_k}: {'right' if right else 'WRONG'}"
            print(f"ep: {told}, {seconds * 1e3:.2f} ms")
    return not right


if __name__ == "__main__":
    raise SystemExit(main())
