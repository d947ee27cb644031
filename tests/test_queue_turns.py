"""Send queues that many threads share (kernels/queue.py), with threads interrupted between their memory accesses.

The simulator lets no thread run in the midst of submit and ring by itself; here others do, at random, before any primitive that these use.
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
from pgas import runtime
from pgas.kernels import ptx, queue
from pgas.sim import engine

BLOCKS, PUTS = 24, 40

@pgas.jit
def work(dest, turn):
    first = cuda.blockIdx.x * PUTS
    for i in range(PUTS):
        pgas.p(dest, 2 * (first + i), turn * 100000 + first + i + 1, 0)
    pgas.quiet()

dice, seen = random.Random(int(sys.argv[1])), collections.Counter()

def interrupted(name):
    primitive = getattr(ptx, name)
    def run(*operands):
        if dice.random() < 0.2:
            engine.preempt()
        found = primitive(*operands)
        if name == "atom_cas_gpu_u64" and found == operands[1] and found & queue.RINGING:
            seen["left to the one who rings"] += 1
        if name == "atom_cas_release_gpu_u64" and found != operands[1]:
            seen["more got ready while one rang"] += 1
        return found
    setattr(ptx, name, run)

with pgas.init():
    dest = pgas.zeros(2 * BLOCKS * PUTS, np.int64)
    for name in ("ld_relaxed_gpu_u64", "atom_cas_gpu_u64", "atom_cas_release_gpu_u64", "st_relaxed_gpu_u64", "st_relaxed_sys_u32",
                 "st_release_sys_u64", "atom_add_gpu_u64", "fence_sys"):
        interrupted(name)
    for turn in range(1, 4):
        work[BLOCKS, 1](dest, turn)
        pgas.synchronize()
        assert (dest.copy_to_host()[::2] == turn * 100000 + np.arange(BLOCKS * PUTS) + 1).all(), turn
    counted = next(qp for qp in runtime.current().nic.adapter.counters()["qps"] if qp["wqes"])
    pgas.free(dest)
print(json.dumps({**seen, **{name: counted[name] for name in ("wqes", "doorbells", "stale_doorbells", "stale_records")}}))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_interrupted_threads_hand_over_everything_in_order(seed, tmp_path):
    """Every value arrives, no doorbell or record goes backwards; threads leave ringing to others, and those go on for them."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    variables = {"PGAS_TRANSPORT": "ibgda", "PGAS_QP_DEPTH": "128", "PGAS_IBGDA_NUM_RC_PER_PE": "1", "NUMBA_ENABLE_CUDASIM": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | variables
    done = subprocess.run([sys.executable, str(path), str(seed)], capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["wqes"], seen["stale_doorbells"], seen["stale_records"]) == (3 * 24 * 40, 0, 0)
    assert seen["left to the one who rings"] > 100
    assert seen["more got ready while one rang"] > 100
