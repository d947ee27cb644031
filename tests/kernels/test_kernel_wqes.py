"""WQEs of device functions in the simulator: byte for byte those of the golden file and of the driver's builders.

tests/kernels/test_sass_nic.py does the same with compiled functions.
"""

import os
from dataclasses import replace

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numpy as np
import posting
import pytest
from numba import cuda
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype

from pgas.kernels.codes import Update
from pgas.kernels.collectives import barriers
from pgas.kernels.compiler import cpu
from pgas.kernels.paths import ibgda
from pgas.kernels.paths.nic import post
from pgas.kernels.scope import BLOCK, THREAD
from pgas.sass import CONSTANTS
from pgas.sim import engine

engine.install()
pytestmark = pytest.mark.skipif(not hasattr(cuda, "simulator"), reason="needs NUMBA_ENABLE_CUDASIM=1")

PUT_OF_A_GIB = "put_of_a_gib_and_32_bytes"


def operations(t):
    """Return, by name, (lanes, the call of each lane)."""
    pe, word = posting.PE, posting.DEST

    def put(nbytes, scope=THREAD):
        return 1, lambda _: t.put("put", scope, 4, nbi=False)(posting.DEST, posting.SOURCE, nbytes, pe, 0)

    def put_signal(scope, *, add):
        return 1, lambda _: t.put_signal("put_signal", scope, 4, nbi=False)(
            posting.DEST, posting.SOURCE, posting.NBYTES, posting.WORD, 1, add, pe
        )

    def p(dtype, value, lanes=1):
        array = np.zeros(1, dtype)
        store = t.p(from_dtype(array.dtype))
        return lanes, lambda lane: store(posting.DEST + lane * array.itemsize, array, value, pe, 0)

    def atomic(name, update, dtype, value=0x0102030405060708, compare=0, lanes=1):
        array = np.zeros(1, dtype)
        perform = t.atomic(name, update, from_dtype(array.dtype), fetch="fetch" in name or update is Update.COMPARE_SWAP)
        return lanes, lambda _: perform(posting.DEST, array, value, compare, pe)

    def add(name, dtype):
        return atomic(name, Update.ADD, dtype, 1)

    return {
        "put": put(posting.NBYTES),
        PUT_OF_A_GIB: put((1 << 30) + 32),
        "get": (1, lambda _: t.get("get", THREAD, 4, nbi=False)(posting.SOURCE, posting.DEST, posting.NBYTES, pe, 0)),
        "g": (1, lambda _: t.g(types.float32)(posting.DEST, np.zeros(1, np.float32), pe, 0)),
        "p": p(np.float32, 1.5),
        "p_int8": p(np.int8, 0x5A),
        "p_int16": p(np.int16, 0x5A5B),
        "p_float64": p(np.float64, 1.5),
        "p_complex128": p(np.complex128, 1.5 - 2j),
        "p_by_3_lanes": p(np.float32, 1.5, 3),
        "p_complex128_by_3_lanes": p(np.complex128, 1.5 - 2j, 3),
        "atomic_add": add("atomic_add", np.uint64),
        "atomic_add_int32": add("atomic_add", np.int32),
        "atomic_add_float32": add("atomic_add", np.float32),
        "atomic_add_float64": add("atomic_add", np.float64),
        "atomic_fetch_add": add("atomic_fetch_add", np.uint64),
        "atomic_fetch_add_int32": add("atomic_fetch_add", np.int32),
        "atomic_set": atomic("atomic_set", Update.SWAP, np.uint64),
        "atomic_set_by_3_lanes": atomic("atomic_set", Update.SWAP, np.uint64, lanes=3),
        "atomic_compare_swap": atomic("atomic_compare_swap", Update.COMPARE_SWAP, np.uint64, compare=0x1112131415161718),
        "atomic_and_int32": atomic("atomic_and", Update.AND, np.int32, 0x0F0F00FF),
        "atomic_xor_int32": atomic("atomic_xor", Update.XOR, np.int32, 0x0F0F00FF),
        "atomic_fetch_or": atomic("atomic_fetch_or", Update.OR, np.uint64),
        "atomic_fetch_xor": atomic("atomic_fetch_xor", Update.XOR, np.uint64),
        "atomic_fetch_float32": atomic("atomic_fetch", Update.KEEP, np.float32, 0),
        "signal_op": (1, lambda _: t.signal(word, 1, False, pe)),
        "put_signal": put_signal(THREAD, add=False),
        "put_signal_block": put_signal(BLOCK, add=True),
        "sync_all": (1, lambda _: barriers.of_all("sync_all", THREAD, completes=False)()()),
        "settle": (1, lambda _: t.settle(0)),
    }


@pytest.fixture
def run(monkeypatch):
    """Return run(name, idx), which performs an operation and returns the job with its WQEs."""

    def run(name, idx=posting.IDX):
        job = posting.Job(name, idx)
        monkeypatch.setattr(cpu, "mem", job.memory)
        monkeypatch.setattr(cpu, "_read_only", {})
        posting.freeze(monkeypatch, replace(CONSTANTS["ibgda"], settles=name.endswith(("settle", "settled"))))
        lanes, call = operations(ibgda)[name.removesuffix("_settled")]
        if name == "sync_all":  # Without the flag by which PEs compare their calls in the simulator.
            monkeypatch.setattr(barriers.operands, "checking", lambda: False)

        @cuda.jit
        def kernel():
            call(cuda.threadIdx.x)

        kernel[1, lanes]()
        return job

    return run


@pytest.mark.parametrize("name", posting.GOLDEN)
def test_the_drivers_builders_make_the_golden_bytes(name):
    assert posting.built(name) == posting.golden(name)


@pytest.mark.parametrize("name", posting.GOLDEN)
def test_functions_write_the_golden_bytes(name, run):
    run(name).check(posting.golden(name))


@pytest.mark.parametrize("name", ["put_signal", "p_complex128_by_3_lanes", "atomic_set_by_3_lanes"])
@pytest.mark.parametrize("idx", [0xFFFD, 0xFFFE, 0xFFFF, 0x10000])
def test_wqes_wrap_at_the_end_of_the_ring_and_of_16_bits(name, idx, run):
    run(name, idx).check(posting.built(name, idx))


@pytest.mark.parametrize("field", posting.WRONG)
def test_one_wrong_bit_of_a_builder_is_seen(field, run, monkeypatch):
    monkeypatch.setattr(post, *posting.WRONG[field])
    job = run("put")
    for expected in (posting.golden("put"), posting.built("put")):
        with pytest.raises(AssertionError):
            job.check(expected)
