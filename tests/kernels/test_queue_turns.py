"""Send queues that many threads share (kernels/paths/nic/queue.py), with threads interrupted between their memory accesses.

By itself the simulator does not switch threads inside submit and ring; here it does, at random, before any primitive in them.
"""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import collections, json, random, sys
import numpy as np
import pgas
from numba import cuda
from pgas.job import runtime
from pgas.kernels import layout
from pgas.kernels.compiler import ptx
from pgas.sim import engine

BLOCKS, PUTS, STRIDED = 24, 40, 20 * 32

@pgas.jit
def work(dest, turn, puts, missed):
    first = cuda.blockIdx.x * PUTS
    for i in range(puts):
        pgas.p(dest, 2 * (first + i), turn * 100000 + first + i + 1, 0)
    pgas.quiet()
    for i in range(puts):
        if dest[2 * (first + i)] != turn * 100000 + first + i + 1:
            missed[0] = 1

@pgas.jit
def warps(dest, source, words, missed):
    # Some copy more elements than the queue has WQEBBs, or signal in each lane, with 4 WQEBBs, between threads that post one by one.
    own = dest[cuda.blockIdx.x]
    lane = cuda.threadIdx.x
    if cuda.blockIdx.x % 2:
        for i in range(8):
            pgas.put_signal(own[lane : lane + 1], source[lane : lane + 1], words[cuda.blockIdx.x], lane, i + lane, pgas.SIGNAL_SET, 0)
        pgas.iput_warp(own, source, 3, 1, 0)
    elif lane == 0:
        for i in range(PUTS):
            pgas.p(own, i, source[i], 0)
        pgas.quiet()
        for i in range(PUTS):
            if own[i] != source[i]:
                missed[0] = 1

dice, seen = random.Random(int(sys.argv[1])), collections.Counter()

def interrupted(name):
    primitive = getattr(ptx, name)
    def run(*operands):
        if dice.random() < 0.2:
            engine.preempt()
        found = primitive(*operands)
        if name == "atom_cas_gpu_u64" and found == operands[1] and found & layout.RINGING:
            seen["left to the one who rings"] += 1
        if name == "atom_cas_release_gpu_u64" and found != operands[1]:
            seen["more got ready while one rang"] += 1
        return found
    setattr(ptx, name, run)

with pgas.init():
    dest, missed = pgas.zeros(2 * BLOCKS * PUTS, np.int64), pgas.zeros(1, np.int64)
    apart, source = pgas.zeros((6, 3 * STRIDED), np.int64), pgas.array(np.arange(1, STRIDED + 1))
    words = pgas.zeros((6, 32), np.uint64)
    for name in ("ld_relaxed_gpu_u64", "ld_acquire_gpu_u64", "atom_cas_gpu_u64", "atom_cas_release_gpu_u64", "atom_add_gpu_u64",
                 "st_relaxed_gpu_u64", "st_release_gpu_u64", "st_relaxed_sys_u32", "st_relaxed_sys_u64", "red_or_gpu_u64", "fence_nic"):
        interrupted(name)
    work[int(sys.argv[2]), 1](dest, 0, 1, missed)  # the first ones on this queue pair: each quiet knows of it, and sees it complete
    nic = runtime.current().nic
    assert nic._load(layout.RECORDS + layout.CONS_IDX) == nic._load(layout.RECORDS + layout.RESV_HEAD)
    for turn in range(1, 4):
        work[BLOCKS, 1](dest, turn, PUTS, missed)
        pgas.synchronize()
        assert (dest.copy_to_host()[::2] == turn * 100000 + np.arange(BLOCKS * PUTS) + 1).all(), turn
    counted = next(qp for qp in runtime.current().nic.adapter.counters()["qps"] if qp["wqes"])
    warps[6, 32](apart, source, words, missed)
    pgas.synchronize()
    assert (apart.copy_to_host()[1::2, ::3] == np.arange(1, STRIDED + 1)).all()
    assert (words.copy_to_host()[1::2] == 7 + np.arange(32)).all()
    assert missed[0] == 0, "a quiet returned before what it waits for was there"
    for array in (dest, missed, apart, source, words):
        pgas.free(array)
print(json.dumps({**seen, **{name: counted[name] for name in ("wqes", "doorbells", "stale_doorbells", "stale_records")}}))
"""


@pytest.mark.parametrize(("seed", "first"), [(1, 24), (2, 1)])
def test_interrupted_threads_hand_over_everything_in_order(seed, first, tmp_path):
    """Every value arrives before its quiet returns, and no doorbell or DBR goes backwards, also if threads leave ringing to others.

    Warps that need more WQEBBs than the queue has do not block others. first: blocks that post the first WQEs.
    """
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    variables = {"PGAS_TRANSPORT": "ibgda", "PGAS_QP_DEPTH": "128", "PGAS_IBGDA_NUM_RC_PER_PE": "1", "NUMBA_ENABLE_CUDASIM": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | variables
    command = [sys.executable, str(path), str(seed), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["wqes"], seen["stale_doorbells"], seen["stale_records"]) == (first + 3 * 24 * 40, 0, 0)
    assert seen["left to the one who rings"] > 100
    assert seen["more got ready while one rang"] > 100
