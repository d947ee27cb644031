"""The compiled cuda engine: properties of its code for speed and memory order. Its function is tested in the simulator (PGAS_ENGINE=cuda
with the other test_softhca_*.py) and on GPUs (make check-gpu)."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.sass

PROGRAM = """
import json, re
from types import SimpleNamespace
import numba.cuda.compiler, numba.cuda.dispatcher
device = SimpleNamespace(compute_capability=(9, 0))
numba.cuda.compiler.get_current_device = numba.cuda.dispatcher.get_current_device = lambda: device
from numba import cuda
import pgas
from pgas import sass
from pgas.transports.softhca.cuda import block
ptx = cuda.compile(block.loop.py_func, block.SIGNATURE, cc=(9, 0), device=False, abi="numba")[0]
shared = re.findall(r"[.]shared [.]align (\\d+) [.]b8 \\w+\\[(\\d+)\\]", ptx)
built = sass.assemble({"loop": ptx}, **block.COMPILED)["loop"].summary()
print(json.dumps({**built, "shared": {int(nbytes): int(align) for align, nbytes in shared}}))
"""


#: Most spilled bytes; 384 on 2026-11-25 with ptxas 13.4. Without a register limit the kernel spills nothing, but then only one CTA fits on
#: an SM. Two serve more QPs at once, which is worth some spills.
SPILLS = 400


KEY = """
from types import SimpleNamespace
from pgas.transports.softhca.cuda import block
print(block.loop._cache._index_key(block.SIGNATURE, SimpleNamespace(magic_tuple=lambda: ())))
"""


def _run(program):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_the_next_job_finds_the_kernel_in_the_disk_cache():
    """Its key is the same in every process. Otherwise every job compiles the kernel, for 20 s."""
    assert _run(KEY) == _run(KEY)


@pytest.mark.slow
def test_two_ctas_of_the_kernel_have_room_on_an_sm():
    built = json.loads(_run(PROGRAM))
    assert built["registers"] <= 65536 // (2 * 256)
    assert built["spills"] <= SPILLS
    memory = built["memory"]
    assert memory.get("CCTL.IVALL", 0) > 0  # doorbells are taken with an acquire
    assert memory.get("MEMBAR.ALL.SYS", 0) > 0  # a fence precedes each CQE
    assert memory.get("LDGSTS.E.BYPASS.128", 0) > 0, memory  # WQEs are read past L1, 16 bytes at a time, while others are executed
    assert built["shared"][str(2 * 256 * 64)] == 16  # two batches of WQEs
