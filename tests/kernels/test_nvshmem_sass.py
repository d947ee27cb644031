"""nvshmem4py's device functions cost nothing: their SASS is that of the pgas function, although the order of operands differs."""

import json
import os
import re
import subprocess
import sys

import pytest
from compiled import LIMIT, TOOLS

pytestmark = [pytest.mark.sass, pytest.mark.timeout(2 * LIMIT)]

#: Calls of nvshmem4py's functions, and of those of pgas.
CALLS = {
    "put_block": ("nv.put_block(dest, source, pe)", "pgas.put_block(dest, source, pe)"),
    "get_nbi": ("nv.get_nbi(dest, source, pe)", "pgas.get_nbi(dest, source, pe)"),
    "put_signal_warp": (
        "nv.put_signal_warp(dest, source, sig, 1, ADD, pe)", "pgas.put_signal_warp(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)",
    ),
    "p": ("nv.p(dest, 1, pe)", "pgas.p(dest, 0, 1, pe)"),
    "g": ("source[0] = nv.g(dest, pe)", "source[0] = pgas.g(dest, 0, pe)"),
    "atomic_fetch_add": ("sig[1] = nv.atomic_fetch_add(sig, 1, pe)", "sig[1] = pgas.atomic_fetch_add(sig, 0, 1, pe)"),
    "signal_wait": ("nv.signal_wait(sig, GE, 1)", "pgas.signal_wait_until(sig, 0, pgas.GE, 1)"),
    "barrier_block": ("nv.barrier_block(pe)", "pgas.barrier_block(pe)"),
    "fcollect_block": ("nv.fcollect_block(pe, dest, source)", "pgas.fcollect_block(pe, dest, source)"),
    "reducescatter_warp": ("nv.reducescatter_warp(pe, dest, source, 'max')", "pgas.reducescatter_warp(pe, dest, source, pgas.MAX)"),
}  # fmt: skip

#: Those that make check compares; the others take minutes.
QUICK = ("put_block", "p", "signal_wait")

#: Calls whose code differs from that of pgas, because operands may have different sizes, or an address may be 0. They only have to compile.
OTHERS = [
    "nv.reduce_warp(pe, dest, source, OP)", "nv.broadcast_warp(pe, dest, source)", "nv.alltoall_block(pe, dest, source)",
    "nv.fcollect(pe, dest, source)", "nv.get_peer_array(dest, pe)[0] = 1",
]  # fmt: skip

PROGRAM = """
import json, sys
import pgas
from pgas import sass
from pgas.kernels.compiler import types
from pgas.nvshmem import core

def kernel(line):
    found = dict(nv=core.device.numba, pgas=pgas, ADD=core.SignalOp.SIGNAL_ADD, GE=core.ComparisonType.CMP_GE, OP="sum", __name__=__name__)
    exec(f"def kernel(dest, source, sig, pe):\\n    {line}", found)
    return found["kernel"], (types.float32[::1], types.float32[::1], types.uint64[::1], types.int32)

transport, *lines = sys.argv[1:]
sass.configure(transport)
print(json.dumps({line: built.instructions for line, built in sass.build_all({line: kernel(line) for line in lines}).items()}))
"""


def listing(transport, *lines):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": TOOLS}
    command = [sys.executable, "-c", PROGRAM, transport, *lines]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def plain(instructions):
    """Return instructions in which labels and names of functions are numbered in the order of their occurrence."""
    names = {}
    return [re.sub(r"`?\([\w.$]+\)|\.L_x_\d+", lambda match: names.setdefault(match[0], f"L{len(names)}"), line) for line in instructions]


def compare(transport, names, *others):
    built = listing(transport, *(line for name in names for line in CALLS[name]), *others)
    for name in names:
        theirs, ours = (plain(built[line]) for line in CALLS[name])
        assert len(ours) > 5, name
        assert theirs == ours, name


def test_the_code_is_that_of_pgas():
    compare("p2p", QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["p2p", "ibgda", "p2p,ibgda"])
def test_the_code_of_all_is_that_of_pgas(transport):
    compare(transport, tuple(CALLS), *OTHERS)
