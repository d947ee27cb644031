"""Send pages of a key-value cache from prefill PEs to decode PEs, and answers back: ``mpirun -n 4 python kv_push.py --slots 2``."""

import argparse
import time

import numpy as np

import pgas
from pgas import cuda


@pgas.jit
def kv_push(cache, ring, arrived, credits, query, answer, answers, answered, prefills, decodes):
    """Block d of prefill PE p sends pages to decode PE d, whose block decodes + p receives them. The last PEs are the decode PEs."""
    me, n, slots, block, thread = pgas.my_pe(), pgas.n_pes(), ring.shape[1], cuda.blockIdx.x, cuda.threadIdx.x
    requests, pages = cache.shape[1], cache.shape[2]
    if block < decodes and me < prefills:
        pe = n - decodes + block
        for k in range(requests * pages):
            if thread == 0 and k >= slots:
                pgas.signal_wait_until(credits, block, pgas.GE, k - slots + 1)  # this many pages have been used
            cuda.syncthreads()  # the slot is free
            page = cache[block, k // pages, k % pages]
            pgas.put_signal_nbi_block(ring[me, k % slots], page, arrived, (me, k % slots), k + 1, pgas.SIGNAL_SET, pe)
        if thread == 0:
            pgas.signal_wait_until(answered, block, pgas.EQ, requests)  # all answers have arrived
    if block >= decodes and me >= n - decodes:
        p, d = block - decodes, me - (n - decodes)
        for k in range(requests * pages):
            if thread == 0:
                pgas.signal_wait_until(arrived, (p, k % slots), pgas.EQ, k + 1)
            cuda.syncthreads()  # the page is visible to all threads
            for i in range(thread, query.size, cuda.blockDim.x):  # the work of a decoder; in this program, a scalar product
                cuda.atomic.add(answer, (p, k // pages), ring[p, k % slots, i] * query[i])
            cuda.syncthreads()  # the page has been read
            if thread == 0:
                pgas.signal_op(credits, d, 1, pgas.SIGNAL_ADD, p)
                if (k + 1) % pages == 0:  # the request's last page
                    r = k // pages
                    pgas.put_signal_nbi(answers[d, r : r + 1], answer[p, r : r + 1], answered, d, 1, pgas.SIGNAL_ADD, p)


options = argparse.ArgumentParser(description=__doc__)
for name, default in {"requests": 2, "pages": 3, "page": 32, "slots": 2, "threads": 32}.items():
    options.add_argument(f"--{name}", type=int, default=default)  # requests: per pair of PEs; page: number of elements
args = options.parse_args()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    prefills, decodes = max(1, n // 2), n - n // 2  # the first PEs and the last; a single PE is both
    query_of, pages = np.arange(args.page, dtype=np.float32), args.requests * args.pages
    cache_of = np.random.default_rng(me).random((decodes, args.requests, args.pages, args.page), np.float32)
    cache, query = pgas.array(cache_of), pgas.array(query_of)
    ring, arrived = pgas.zeros((prefills, args.slots, args.page), np.float32), pgas.zeros((prefills, args.slots), np.uint64)
    credits, answered = pgas.zeros(decodes, np.uint64), pgas.zeros(decodes, np.uint64)
    answer, answers = pgas.zeros((prefills, args.requests), np.float32), pgas.zeros((decodes, args.requests), np.float32)
    for _ in range(2):  # the first run includes compilation
        for array in (ring, arrived, credits, answered, answer, answers):
            array.copy_to_device(np.zeros(array.shape, array.dtype))
        pgas.barrier_all()
        began = time.perf_counter()
        arguments = (cache, ring, arrived, credits, query, answer, answers, answered, prefills, decodes)
        pgas.launch(kv_push, prefills + decodes, args.threads, arguments)
        pgas.barrier_all()
        seconds = time.perf_counter() - began
    expected = (cache_of @ query_of).sum(axis=2) if me < prefills else 0  # decode PEs get no answers
    right = all(pgas.allgather_object(bool(np.allclose(answers.copy_to_host(), expected, rtol=1e-4))))
    if me == 0:
        sent = prefills * decodes * pages
        told = f"{prefills} prefill, {decodes} decode, {sent} pages of {4 * args.page} bytes, {args.slots} slots"
        print(f"kv_push: {n} PEs, {told}: {'right' if right else 'WRONG'}, {seconds * 1e6 / sent:.1f} us a page")
raise SystemExit(not right)
