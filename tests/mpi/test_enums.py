"""A program's IntEnum and IntFlag are integers in kernels, in the simulator and for a GPU: as index, stride, count, value, and PE."""

import os
import subprocess
import sys
from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np
import pytest

import pgas

ROOT = Path(__file__).resolve().parents[2]


class Place(IntEnum):
    ZERO = 0
    ONE = 1
    TWO = 2


class Bits(IntFlag):
    ZERO = 0
    ONE = 1
    TWO = 2


KERNEL = """
def kernel(a, b, words, signal):
    a[V.TWO] = V.TWO
    a[V["ONE"]] = V.ONE | 4
    if a[V.ZERO] == V.ZERO and V.ONE.value == 1:
        a[FREE] = V.TWO + FREE
    pgas.put(b[V.ZERO:], a, V.ZERO)
    pgas.p(b, V.ZERO, pgas.g(a, V.ONE, V.ZERO), V.ZERO)
    pgas.iput(b, a, V.TWO, V.ONE, V.TWO, V.ZERO)
    pgas.atomic_add(words, V.ONE, V.TWO, V.ZERO)
    words[V.TWO] = pgas.atomic_fetch_add(words, V.ONE, V.TWO, V.ZERO)
    pgas.quiet_pe(V.ZERO)
    pgas.put_signal(a, a, signal, V.ZERO, V.TWO, pgas.SIGNAL_SET, V.ZERO)
    pgas.signal_wait_until(signal, V.ZERO, pgas.GE, V.TWO)
    pgas.put_block(b, a, V.ZERO)
"""


def made(kind, text=KERNEL):
    namespace = {"pgas": pgas, "V": kind, "FREE": kind.ZERO}
    exec(text, namespace)
    return namespace["kernel"]


@pytest.mark.parametrize("kind", [Place, Bits])
def test_run(heap, kind):
    """PE 0 is its own target."""
    a, b = heap.zeros(4), heap.zeros(4)
    words, signal = heap.zeros(4, np.int64), heap.zeros(1, np.uint64)
    if pgas.my_pe() == 0:
        pgas.jit(made(kind))[1, 1](a, b, words, signal)
    pgas.synchronize()
    expected = ([2, 5, 2, 0], [2, 5, 2, 0], [0, 4, 2, 0], [2]) if pgas.my_pe() == 0 else ([0] * 4, [0] * 4, [0] * 4, [0])
    assert tuple(x.copy_to_host().tolist() for x in (a, b, words, signal)) == expected


def test_compiled():
    """In a process of its own, because Numba decides between simulator and GPU at its import."""
    if pgas.my_pe():
        return
    program = """
from pgas import sass
sass.configure("p2p")
from numba.cuda import types
from mpi import test_enums
arrays = [types.Array(kind, 1, "C") for kind in (types.float64, types.float64, types.int64, types.uint64)]
for kind in (test_enums.Place, test_enums.Bits):
    print(len(sass.compile_ptx(test_enums.made(kind), arrays)) > 1000)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PMI_")}
    environment |= {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
