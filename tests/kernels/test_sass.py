"""The compiled code: SASS of every device function and dtype, and the messages of refusals at compile time.

One process with NUMBA_ENABLE_CUDASIM=0 compiles everything once a session, without a GPU. The tests read its listing.
"""

import fcntl
import json
import os
import re
import subprocess
import sys

import numpy as np
import ptx_machine
import pytest
from compiled import LIMIT, TOOLS

from pgas.kernels import layout, operation, refusals, state, window

pytestmark = [pytest.mark.sass, pytest.mark.timeout(2 * LIMIT)]

#: Names of perftests.sass.KERNELS.
FUNCTIONS = [
    "p", "p_int8", "p_int16", "p_float64", "p_complex128", "g", "put", "put_warp", "put_block", "put_nbi_block", "get", "get_warp",
    "get_block", "get_nbi_block", "iput", "iput_block", "iget_warp", "quiet_pe", "flush",
    "put_signal", "put_signal_warp", "put_signal_block", "signal_op", "signal_wait_until", "atomic_add", "atomic_add_int32",
    "atomic_add_float32", "atomic_add_float64", "atomic_fetch_add", "atomic_fetch_add_int32",
    "atomic_set", "atomic_compare_swap", "atomic_and_int32", "atomic_xor_int32", "atomic_fetch_or", "atomic_fetch_xor",
    "atomic_fetch_float32", "test", "wait_until_all", "wait_until_any", "wait_until_some_vector", "quiet", "fence", "barrier_all",
    "sync_all",
]  # fmt: skip

#: By dtype, the suffix of p's store.
DTYPES = {
    "int8": ".U8", "uint8": ".U8", "boolean": ".U8", "int16": ".U16", "uint16": ".U16", "float16": ".U16", "int32": "", "uint32": "",
    "float32": "", "int64": ".64", "uint64": ".64", "float64": ".64", "complex64": ".64", "complex128": ".128",
}  # fmt: skip

#: (call, beginning of the refusal). Arguments: a, b arrays of float32, d of float64, t of two dimensions, c in Fortran order, n with gaps,
#: s of uint64, h of int8, w of int16, f of float16, e of bfloat16, r of records, x a float, i an integer, z a complex number.
REFUSALS = [
    ("pgas.put(a, a, target=i)", "pgas.put: there is no parameter target; the parameters are dest, source, pe, nelems, qp"),
    ("pgas.put(a, a, i, nelem=i)", "pgas.put: there is no parameter nelem (did you mean nelems?); the parameters"),
    ("pgas.put(a, a)", "pgas.put: missing a required argument: 'pe'; the parameters are dest, source, pe, nelems, qp"),
    ("pgas.put(a, d, i)", "pgas.put: source has elements of type float64, dest of type float32; they must be the same"),
    ("pgas.put(a, t, i)", "pgas.put: source has 2 dimensions, dest has 1 dimension; they must have the same number"),
    ("pgas.put(t, c, i)", "pgas.put: source is in F order, dest in C order; they must be the same"),
    ("pgas.put(a, x, i)", "pgas.put: source must be an array, not float32"),
    ("pgas.put(i, a, i)", "pgas.put: dest must be an array, not int32"),
    ("pgas.put(a, a, a)", "pgas.put: pe must be an integer, not an array of float32 with 1 dimension"),
    ("pgas.put(a, a, x)", "pgas.put: pe must be an integer, not float32"),
    ("pgas.put(a, a, i, x)", "pgas.put: nelems must be an integer, not float32"),
    ("pgas.put(a, a, i, 3, x)", "pgas.put: qp must be an integer, not float32"),
    ("pgas.put_warp(a, d, i)", "pgas.put_warp: source has elements of type float64"),
    ("pgas.put_nbi_block(a, d, i)", "pgas.put_nbi_block: source has elements of type float64"),
    ("pgas.get(a, d, i)", "pgas.get: source has elements of type float64"),
    ("pgas.get_nbi_warp(a, d, i)", "pgas.get_nbi_warp: source has elements of type float64"),
    ("pgas.iput(a, d, 1, 2, i)", "pgas.iput: source has elements of type float64"),
    ("pgas.iput_block(t, t, 1, 2, i)", "pgas.iput_block: dest and source have 2 dimensions, but must have 1, because strides count"),
    ("pgas.iget_warp(a, a, x, 1, i)", "pgas.iget_warp: dst_stride must be an integer, not float32"),
    ("pgas.iget_warp(a, a, 1, x, i)", "pgas.iget_warp: src_stride must be an integer, not float32"),
    ("pgas.iput(a, a, 1, 1, i, x)", "pgas.iput: nelems must be an integer, not float32"),
    ("pgas.quiet_pe(x)", "pgas.quiet_pe: pe must be an integer, not float32"),
    ("pgas.p(a, 0, z, i)", "pgas.p: value is of type complex64, which an element of type float32 cannot hold"),
    ("pgas.p(a, 0, a, i)", "pgas.p: value is an array of float32 with 1 dimension, which an element"),
    ("pgas.p(a, x, 1, i)", "pgas.p: idx must be an integer, not float32"),
    ("pgas.p(a, (0, 0), 1, i)", "pgas.p: idx has 2 subscript(s), but dest has 1 dimension"),
    ("pgas.p(t, 0, 1, i)", "pgas.p: idx has 1 subscript(s), but dest has 2 dimensions"),
    ("pgas.p(t, (0, x), 1, i)", "pgas.p: idx must be an integer, not float32"),
    ("pgas.p(i, 0, 1, i)", "pgas.p: dest must be an array, not int32"),
    ("pgas.p(a, 0, 1, x)", "pgas.p: pe must be an integer, not float32"),
    ("pgas.p(a, 0, 1, None)", "pgas.p: pe must be an integer, not None"),
    ("pgas.p(r, 0, r[0], i)", "pgas.p: elements of type Record"),
    ("pgas.g(t, 0, i)", "pgas.g: idx has 1 subscript(s), but source has 2 dimensions"),
    ("pgas.g(r, 0, i)", "pgas.g: elements of type Record"),
    ("pgas.put_signal(a, d, s, 0, 1, pgas.SIGNAL_SET, i)", "pgas.put_signal: source has elements of type float64"),
    ("pgas.put_signal(a, a, a, 0, 1, pgas.SIGNAL_SET, i)", "pgas.put_signal: sig must be an array of uint64, not an array of float32"),
    ("pgas.put_signal_block(a, a, s, x, 1, pgas.SIGNAL_SET, i)", "pgas.put_signal_block: idx must be an integer, not float32"),
    ("pgas.put_signal(a, a, s, 0, x, pgas.SIGNAL_SET, i)", "pgas.put_signal: value must be an integer, not float32"),
    ("pgas.put_signal(a, a, s, 0, 1, x, i)", "pgas.put_signal: op must be an integer, not float32"),
    ("pgas.signal_op(a, 0, 1, 0, i)", "pgas.signal_op: sig must be an array of uint64, not "),
    ("pgas.signal_op(s, 0, 1, 0, x)", "pgas.signal_op: pe must be an integer, not float32"),
    ("pgas.signal_wait_until(a, 0, pgas.EQ, 1)", "pgas.signal_wait_until: sig must be an array of uint64, not "),
    (
        "pgas.wait_until(a, 0, pgas.EQ, 1)",
        "pgas.wait_until: ivar has elements of type float32; it must hold integers of 16, 32, or 64 bits",
    ),
    ("pgas.wait_until(h, 0, pgas.EQ, 1)", "pgas.wait_until: ivar has elements of type int8"),
    ("pgas.wait_until(s, 0, x, 1)", "pgas.wait_until: cmp must be an integer, not float32"),
    ("pgas.wait_until(s, 0, pgas.EQ, x)", "pgas.wait_until: value must be an integer, not float32"),
    (
        "pgas.atomic_add(h, 0, 1, i)",
        "pgas.atomic_add: dest has elements of type int8; it must hold integers or floats of 16, 32, or 64 bits",
    ),
    ("pgas.atomic_fetch_add(s, (0, 0), 1, i)", "pgas.atomic_fetch_add: idx has 2 subscript(s), but dest has 1 dimension"),
    ("pgas.atomic_add(s, 0, z, i)", "pgas.atomic_add: value is of type complex64, which an element of type uint64 cannot hold"),
    ("pgas.atomic_min(a, 0, 1, i)", "pgas.atomic_min: dest has elements of type float32; it must hold integers of 16, 32, or 64 bits"),
    ("pgas.atomic_and(a, 0, 1, i)", "pgas.atomic_and: dest has elements of type float32; it must hold integers of 16, 32, or 64 bits"),
    ("pgas.atomic_compare_swap(d, 0, 1, 2, i)", "pgas.atomic_compare_swap: dest has elements of type float64; it must hold integers of"),
    ("pgas.atomic_compare_swap(s, 0, z, 2, i)", "pgas.atomic_compare_swap: cond is of type complex64, which an element of type uint64"),
    ("pgas.atomic_inc(a, 0, i)", "pgas.atomic_inc: dest has elements of type float32; it must hold integers of 16, 32, or 64 bits"),
    ("pgas.atomic_fetch(s, 0, x)", "pgas.atomic_fetch: pe must be an integer, not float32"),
    ("pgas.signal_fetch(a, 0)", "pgas.signal_fetch: sig must be an array of uint64, not "),
    ("pgas.set_lock(a, 0)", "pgas.set_lock: lock has elements of type float32; they must be int64 or uint64"),
    ("pgas.test_lock(s, x)", "pgas.test_lock: idx must be an integer, not float32"),
    ("pgas.test(a, 0, pgas.EQ, 1)", "pgas.test: ivar has elements of type float32; it must hold integers of 16, 32, or 64 bits"),
    ("pgas.wait_until_all(h, None, pgas.EQ, 1)", "pgas.wait_until_all: ivars has elements of type int8"),
    ("pgas.wait_until_any(s, a, pgas.EQ, 1)", "pgas.wait_until_any: status must be "),
    ("pgas.test_some(s, i, None, pgas.EQ, 1)", "pgas.test_some: indices must be "),
    ("pgas.test_all_vector(s, None, pgas.EQ, 1)", "pgas.test_all_vector: values must be "),
    ("pgas.ptr(a, x)", "pgas.ptr: pe must be an integer, not float32"),
    ("pgas.zeros(i)", "pgas.zeros: this is a host function; call it outside the kernel"),
    ("pgas.full(shape=4, value=x)", "pgas.full: this is a host function"),
    ("pgas.finalize()", "pgas.finalize: this is a host function"),
]

#: Unusual, but valid calls, which must compile.
ACCEPTED = [
    "pgas.put(n, a[::1], i)",
    "pgas.get_nbi_block(t[0:1, :], t[1:, 0:2], i)",
    "pgas.iget(a, t[:, 1], 1, 1, i)",
    "pgas.put_signal_warp(c[:, 0:1], t[:, 0:1], s[::1], 0, 1, pgas.SIGNAL_ADD, i)",
    "pgas.wait_until_all(s[::1], None, pgas.EQ, 1)",
    "i = pgas.test_some(s[::1], s[::1], s[::2], pgas.EQ, 1)",
    "pgas.ptr(n, i)[0] = 1",
    "pgas.fcollect(0, n, a); pgas.broadcast(0, a, n, 0); pgas.collect(0, n, n); pgas.reduce(0, n, t[0:1, :], pgas.SUM)",
    "pgas.alltoallv(0, n, s, s[::2], n, s[::1], s); pgas.maxloc(0, t[0:1, :], t)",
    "pgas.put(t, t, i)",
    "pgas.put(c, c, i, 3)",
    "pgas.put(t[1], a, i)",
    "pgas.put(t[1, 2:], a[3:5], i, nelems=2)",
    "pgas.put(r, r, i)",
    "pgas.get(shared, a, i)",
    "pgas.get_nbi(a, shared, i, 3)",
    "pgas.iput(a, local, 2, i, i)",
    "pgas.iget_block(r, r, 3, i, i, nelems=2)",
    "pgas.iput_warp(h, h[3:], s[0], 2, i)",
    "pgas.iget(a, t.reshape(8)[1:], 1, t.shape[1], i)",
    "pgas.quiet_pe(s[0])",
    "pgas.flush()",
    "pgas.put_block(a, local, i)",
    "pgas.p(n, 0, 1, i)",
    "pgas.p(c, (0, i), 1.5, i)",
    "pgas.p(a, 0, True, pe=i)",
    "pgas.p(a, s[0], 1, s[1])",
    "pgas.p(h, 0, x, i)",
    "pgas.wait_until(s, 0, pgas.NE, -1)",
    "pgas.signal_op(s, (0,), 1, pgas.SIGNAL_ADD, i)",
    "pgas.atomic_add(d, 0, 1, i)",
    "a[0] = pgas.atomic_swap(d, 0, i, i) + pgas.atomic_fetch(a, 0, i)",
    "pgas.atomic_set(a, (0,), 1, i)",
    "s[0] = pgas.atomic_fetch_min(s, 0, i, i) + pgas.test_lock(s, 0)",
    "w[0] = pgas.atomic_fetch_add(w, 0, 1, i) + pgas.atomic_swap(w, 0, i, i) + pgas.atomic_compare_swap(w, 0, 1, 2, i)",
    "pgas.atomic_max(w, 0, i, i)",
    "f[0] = pgas.atomic_fetch_add(f, 0, f[1], i)",
    "e[0] = pgas.atomic_fetch_add(e, 0, e[1], i)",
    "h[0] = pgas.wait_until_any_vector(s, h, pgas.NE, s, i) + pgas.test_some(s, s, None, pgas.LT, -1)",
    "a[0] = pgas.g(a, 0, i) + pgas.my_pe() + pgas.n_pes()",
    "pgas.ptr(t, i)[0, 1] = 2",
    "pgas.barrier_all_block()",
    "pgas.sync_all_warp()",
    "s[0] = pgas.TEAM_SHARED + pgas.team_n_pes(pgas.TEAM_NODE)",
]

PROGRAM = """
import json, re, sys
from pgas import sass  # first: it chooses the real compiler
from sass import KERNELS, LENT
import numpy as np
import pgas
from numba import cuda
from numba.cuda import types
from numba.cuda.core.errors import TypingError

cases = json.load(sys.stdin)

def listings(kernels):
    return {name: {"instructions": built.instructions, "registers": built.registers, "spills": built.spills, "stack": built.stack,
                   "ptx": built.ptx}
            for name, built in sass.build_all(kernels).items()}

def typed(name):
    dtype = getattr(types, name)
    return types.Array(dtype, 1, "C")

def p_g_put(dest, source, idx, pe):
    pgas.p(dest, idx, source[idx], pe)
    source[idx] = pgas.g(dest, idx, pe)
    pgas.put(dest, source, pe)

def only_p(dest, value, pe):
    pgas.p(dest, cuda.threadIdx.x, value, pe)

def look_for_all(ivars, value):
    if pgas.test_all(ivars, None, pgas.GE, value):
        ivars[0] = 0

def look_for_any(ivars, value):
    if pgas.test_any(ivars, None, pgas.GE, value) >= 0:
        ivars[0] = 0

def look_for_some(ivars, value):
    indices = cuda.local.array(8, types.int32)
    if pgas.test_some(ivars, indices, None, pgas.GE, value) > 0:
        ivars[0] = 0

def fetch_signal(ivars, value):
    if pgas.signal_fetch(ivars, 0) >= value:
        ivars[0] = 0

def get_all(dest, source):
    pgas.get(dest, source, 0)

def barrier_of_a_warp():
    pgas.barrier_all_warp()

found = {"lent": listings({"put": LENT})["put"]}
found |= {"kernels": listings(KERNELS), "dtypes": {}, "warp": listings({"barrier_all": (barrier_of_a_warp, ())})}
cube = types.float32[:, :, :]
found["slices"] = listings({"get": (get_all, (cube, cube))})["get"]
looks = {"test_all": look_for_all, "test_any": look_for_any, "test_some": look_for_some, "signal_fetch": fetch_signal}
found["looks"] = listings({name: (kernel, (types.uint64[::1], types.uint64)) for name, kernel in looks.items()})
found["p"] = listings({name: (only_p, (typed(name), typed(name).dtype, types.int32)) for name in cases["dtypes"]})
for name in cases["dtypes"]:
    array = typed(name)
    try:
        sass.compile_ptx(p_g_put, (array, array, types.int64, types.int32))
        found["dtypes"][name] = None
    except Exception as error:
        found["dtypes"][name] = f"{type(error).__name__}: {error}"

f32, record = types.float32, np.dtype([("x", "f4"), ("y", "f8")], align=True)
from numba.cuda.np.numpy_support import from_dtype
parameters = {
    "a": f32[::1], "b": f32[::1], "d": types.float64[::1], "t": f32[:, ::1], "c": f32[::1, :], "n": f32[:], "s": types.uint64[::1],
    "h": types.int8[::1], "r": types.Array(from_dtype(record), 1, "C"), "x": f32, "i": types.int32, "z": types.complex64,
    "w": types.int16[::1], "f": types.float16[::1], "e": types.Array(types.bfloat16, 1, "C"),
}

def compiled(call):
    scope = {"pgas": pgas, "cuda": cuda, "types": types}
    lines = [f"def kernel({', '.join(parameters)}):"]
    lines += ["    shared = cuda.shared.array(8, types.float32)"] if "shared" in call else []
    lines += ["    local = cuda.local.array(8, types.float32)"] if "local" in call else []
    exec("\\n".join([*lines, "    " + call]), scope)
    try:
        sass.compile_ptx(scope["kernel"], tuple(parameters.values()))
    except TypingError as error:
        return "TypingError: " + re.sub("\\x1b\\\\[[0-9;]*m", "", str(error))  # without colors
    except Exception as error:
        return f"{type(error).__name__}: {error}"

from pgas.api import host_ops
i64, pixel = types.int64, np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])
found["host"] = {}
for kernel in (host_ops._iput, host_ops._iget):
    for dtype in (np.dtype(np.float32), np.dtype(np.complex128), record, pixel):
        operand = types.Array(from_dtype(host_ops._unit(dtype)), 1, "C")
        built = sass.build(kernel.dispatcher, (operand, operand, i64, i64, i64, i64))
        found["host"][f"{kernel.__name__} {dtype}"] = [built.spills, built.registers]

found["refusals"] = {call: compiled(call) for call in cases["refusals"]}
found["accepted"] = {call: compiled(call) for call in cases["accepted"]}

import threading
from types import SimpleNamespace
from pgas.kernels.compiler import compiler, numba_cuda

def launched(kernel):
    # Compile a kernel as a launch does, and return the error, and the kernel that the thread compiled.
    names, compile_cuda = set(), numba_cuda.dispatchers.compile_cuda
    def spy(*args, **kwargs):
        names.add(compiler.compiling(threading.get_ident()))
        return compile_cuda(*args, **kwargs)
    numba_cuda.dispatchers.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
    numba_cuda.dispatchers.compile_cuda = spy
    try:
        kernel.dispatcher.compile((parameters["a"],))
    except Exception as error:
        return str(error), *names, compiler.compiling(threading.get_ident())

@pgas.jit(device=True)
def shift(a):
    pgas.puut(a, a, 0)

@pgas.jit(cache=False)
def stencil(a):
    shift(a)

found["launched"] = launched(stencil)

def reduce_block(team, dest, source):
    pgas.reduce_block(team, dest, source, pgas.SUM)

def reducescatter(team, dest, source):
    pgas.reducescatter(team, dest, source, pgas.SUM)

def reduce(team, dest, source):
    pgas.reduce(team, dest, source, pgas.SUM)

def reduce_warp(team, dest, source):
    pgas.reduce_warp(team, dest, source, pgas.SUM)

def reducescatter_warp(team, dest, source):
    pgas.reducescatter_warp(team, dest, source, pgas.SUM)

def fcollect_warp(team, dest, source):
    pgas.fcollect_warp(team, dest, source)

reductions = (reduce_block, reduce_warp, reduce, reducescatter_warp, reducescatter, fcollect_warp)
reductions = {kernel.__name__: kernel for kernel in reductions}
found["reductions"] = listings({name: (kernel, (i64, i64[::1], i64[::1])) for name, kernel in reductions.items()})
json.dump(found, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """Return the compiled code of everything; compiled once, also if several pytest workers run these tests."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = folder / "sass.json"
    with open(folder / "sass.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            cases = {"dtypes": list(DTYPES), "refusals": [call for call, _ in REFUSALS], "accepted": ACCEPTED}
            environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")}
            environment |= {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": TOOLS}
            command = [sys.executable, "-c", PROGRAM, str(path.with_suffix(".new"))]
            pipes = {"input": json.dumps(cases), "capture_output": True, "text": True}
            done = subprocess.run(command, env=environment, timeout=LIMIT, check=False, **pipes)
            assert done.returncode == 0, done.stdout + done.stderr
            path.with_suffix(".new").rename(path)
    return json.loads(path.read_text())


def opcodes(listing):
    """Return the opcodes in order, without predicates and operands."""
    return [re.sub(r"^@!?U?P\w+\s+", "", i).split()[0] for i in listing["instructions"]]


def loads(names):
    """Return the loads from memory, without those of constants and parameters (LDC, ULDC)."""
    return [name for name in names if re.match(r"LD(G|S|L)?\.|LD(G|S|L)?$", name)]


def stores(names):
    return [name for name in names if re.match(r"ST(G|S|L)?(\.|$)", name)]


# ------------------------------------------------------------------------------------------------------------ all kernels


def test_every_kernel_of_the_table_is_tested(found):
    assert sorted(found["kernels"]) == sorted(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_spills_no_calls_no_local_memory(function, found):
    listing = found["kernels"][function]
    names = opcodes(listing)
    assert (listing["spills"], listing["stack"]) == (0, 0)
    dividing = ("CALL.REL", "RET.REL") if function in ("iput", "iput_block") else ()  # the number of elements that fit is a 64-bit quotient
    assert not [n for n in names if n.startswith(("CALL", "RET", "LDL", "STL", "BRX", "JMX")) and not n.startswith(dividing or "-")]
    assert names[-1] == "EXIT" or "EXIT" in names


@pytest.mark.parametrize(
    ("function", "most"),
    [("put", 900), ("put_warp", 350), ("put_block", 350), ("put_nbi_block", 345), ("get_block", 350), ("put_signal_block", 400),
     ("iput", 265), ("iput_block", 280), ("iget_warp", 140), ("get_nbi_block", 345), ("flush", 2), ("quiet_pe", 8),
     ("g", 16), ("signal_op", 16), ("signal_wait_until", 150), ("atomic_add", 25), ("atomic_fetch_add", 35), ("barrier_all", 340)],
)  # fmt: skip
def test_size_has_not_grown(function, most, found):
    """Limits are slightly above the sizes of 2026-11-21, with ptxas 13.4 for sm_90."""
    assert len(found["kernels"][function]["instructions"]) <= most


@pytest.mark.parametrize(
    ("function", "most"),
    [
        ("put_block", 40),
        ("put_nbi_block", 40),
        ("get_block", 40),
        ("put_signal_block", 40),
        ("put", 48),
        ("put_warp", 48),
        ("get_warp", 48),
    ],
)
def test_registers_leave_room_for_occupancy(function, most, found):
    """2048 threads of 32 registers fill an SM, and 1,024 of 64. Loads in flight of a thread or a warp take 16 more."""
    assert found["kernels"][function]["registers"] <= most


def test_order_of_bulk_copies(found):
    """A fence comes between ordinary stores and the copy that reads them, and a wait before each step that needs it (bulk.py)."""
    names = opcodes(found["lent"])
    steps = [name for name in names if name.startswith(("UBLKCP", "FENCE.VIEW.ASYNC", "SYNCS.PHASECHK", "DEPBAR"))]
    assert [name for i, name in enumerate(steps) if name != steps[i - 1]] == [
        "FENCE.VIEW.ASYNC.S",  # give_smem: earlier accesses to the array
        "FENCE.VIEW.ASYNC.G",  # what this thread stored to source
        "UBLKCP.S.G",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT",  # the load has landed
        "UBLKCP.G.S",
        "DEPBAR.LE",  # the store before has read its stage
        "UBLKCP.S.G",
        "DEPBAR.LE",  # all stores are complete
    ]
    assert not [name for function in FUNCTIONS for name in opcodes(found["kernels"][function]) if "UBLKCP" in name]
    assert (found["lent"]["spills"], found["lent"]["stack"]) == (0, 0)


def in_flight(listing):
    """Return the largest number of 16-byte loads before the first instruction that uses a result of one of them."""
    most, count, loaded = 0, 0, set()
    for instruction in listing["instructions"]:
        registers = [int(n) for n in re.findall(r"\bR(\d+)", instruction)]
        load = re.search(r"LDG?(\.E)?\.128\S* R\d", instruction)
        if loaded & set(registers[1:] if load else registers) or (load and loaded & set(range(registers[0], registers[0] + 4))):
            count, loaded = 0, set()
        if load:
            count, loaded = count + 1, loaded | set(range(registers[0], registers[0] + 4))
        most = max(most, count)
    return most


@pytest.mark.parametrize(("function", "least"), [("put", 10), ("get", 10), ("put_warp", 8), ("put_block", 4)])
def test_loads_of_a_copy_are_in_flight_together(function, least, found):
    assert in_flight(found["kernels"][function]) >= least


@pytest.mark.parametrize(("function", "least"), [("reduce_block", 8), ("reducescatter", 16)])
def test_loads_from_members_are_in_flight_together(function, least, found):
    """Pairs of words of four members, so that a load from one does not wait for that from another."""
    assert in_flight(found["reductions"][function]) >= least


def runs_of_loads(listing):
    """Return the numbers of strong 16-byte loads between which nothing is stored and no member's number is loaded."""
    runs = [0]
    for name in opcodes(listing):
        if name.startswith("LDG.E.128.STRONG"):
            runs[-1] += 1
        elif name == "LDG.E.CONSTANT" or name.startswith(("ST", "MEMBAR")):
            runs.append(0)
    return runs


@pytest.mark.parametrize("function", ["reduce_warp", "reducescatter_warp"])
def test_lines_of_four_members_are_in_flight_together(function, found):
    """Four of each, because a load takes a latency. The other two such runs are those of pairs on members, the first four and the next."""
    assert sum(run >= 16 for run in runs_of_loads(found["reductions"][function])) >= 3


@pytest.mark.parametrize("function", ["reduce", "reducescatter"])
def test_a_thread_loads_what_members_have_sent_from_staging(function, found):
    """The first four members' data, then the next four's: addresses on peers would take the peers' numbers."""
    assert max(runs_of_loads(found["reductions"][function])) >= 32


@pytest.mark.parametrize(("function", "least"), [("reduce", 16), ("reducescatter_warp", 16), ("fcollect_warp", 16), ("reduce_block", 4)])
def test_several_words_are_loaded_before_they_are_sent_as_lines(function, least, found):
    """Sixteen words of a thread or a warp's lane; in a block, those for four members."""
    names = [name for name in opcodes(found["reductions"][function]) if name.startswith(("LD.", "ST"))]
    runs = "".join("l" if name == "LD.E.64" else " " for name in names).split()
    assert max(map(len, runs)) >= least


@pytest.mark.parametrize("function", ["reduce", "reduce_warp", "reducescatter", "reducescatter_warp"])
def test_reductions_leave_room_for_blocks_of_512_threads(function, found):
    listing = found["reductions"][function]
    assert listing["registers"] <= 128
    assert listing["spills"] == 0


# ---------------------------------------------------------------------------------------------------------------- p and g


def test_p_is_a_dozen_instructions(found):
    names = opcodes(found["kernels"]["p"])
    assert len(names) <= 13
    assert loads(names) == []
    assert stores(names) == ["STG.E.STRONG.SYS"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_p_of_every_dtype_is_one_store(dtype, found):
    listing = found["p"][dtype]
    names = opcodes(listing)
    assert len(names) <= 16
    assert loads(names) == []
    assert stores(names) == [f"STG.E{DTYPES[dtype]}.STRONG.SYS"]
    assert (listing["spills"], listing["stack"]) == (0, 0)


def test_g_is_one_load_past_l1(found):
    names = opcodes(found["kernels"]["g"])
    assert loads(names) == ["LDG.E.STRONG.SYS"]
    assert stores(names) == ["STG.E"]
    assert len(names) <= 16


# ----------------------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize(
    ("function", "load", "store"),
    [("put_block", "LD.E.128", "STG.E.128"), ("put_nbi_block", "LD.E.128", "STG.E.128"), ("put_warp", "LD.E.128", "STG.E.128"),
     ("put_signal_block", "LD.E.128", "STG.E.128"), ("get_block", "LDG.E.128.STRONG.SYS", "ST.E.128"),
     ("get_warp", "LDG.E.128.STRONG.SYS", "ST.E.128")],
)  # fmt: skip
def test_copies_have_several_wide_loads_before_a_store(function, load, store, found):
    """Eight for a warp, four for a block; then half as many; then single ones."""
    wide = "".join({load: "L", store: "S"}.get(name, "") for name in opcodes(found["kernels"][function]))
    counts = (8, 4, 3) if function.endswith("_warp") else (4, 2, 1)
    assert wide == "".join(count * "L" + count * "S" for count in counts)


@pytest.mark.parametrize("function", ["put_block", "put_nbi_block", "put_warp", "put_signal_block", "put"])
def test_sources_of_puts_may_be_shared_or_local(function, found):
    """Loads are generic. The destination is in the window, so stores need no test of the address space."""
    names = opcodes(found["kernels"][function])
    assert not [n for n in loads(names) if n.startswith(("LDS", "LDL")) or (n.startswith("LDG") and "STRONG" not in n)]
    assert not [n for n in stores(names) if n.startswith(("ST.", "STS", "STL"))]


def test_gets_read_past_l1_into_memory_of_any_kind(found):
    names = opcodes(found["kernels"]["get_block"])
    assert all("STRONG.SYS" in n for n in loads(names))
    assert all(n.startswith("ST.") for n in stores(names))


def test_block_operations_synchronize_the_block(found):
    def barriers(function):
        return sum(n.startswith("BAR") for n in opcodes(found["kernels"][function]))

    assert barriers("put_block") == 2
    assert barriers("put_nbi_block") == 1
    assert barriers("get_block") == 2
    assert barriers("put_signal_block") == 2


# ------------------------------------------------------------------------------------------------------- order and signals


def test_quiet_is_a_sequentially_consistent_fence(found):
    assert [n for n in opcodes(found["kernels"]["quiet"]) if n.startswith("MEMBAR")] == ["MEMBAR.SC.SYS"]


def test_fence_is_a_system_fence(found):
    assert [n for n in opcodes(found["kernels"]["fence"]) if n.startswith("MEMBAR")] == ["MEMBAR.ALL.SYS"]


def test_signal_comes_after_data_barrier_and_fence(found):
    names = opcodes(found["kernels"]["put_signal_block"])
    signal = max(i for i, n in enumerate(names) if n.startswith(("REDG", "RED.", "ATOMG", "STG")))
    assert names[signal] == "REDG.E.ADD.64.STRONG.SYS"
    fence = max(i for i in range(signal) if names[i].startswith("MEMBAR"))
    assert names[fence] == "MEMBAR.ALL.SYS"
    barrier = max(i for i in range(fence) if names[i].startswith("BAR"))
    data = [i for i, n in enumerate(names) if n.startswith("STG")]
    assert max(data) < barrier < fence < signal


def test_signal_set_is_one_store(found):
    names = opcodes(found["kernels"]["signal_op"])
    assert stores(names) == ["STG.E.64.STRONG.SYS"]
    assert loads(names) == []
    assert not [n for n in names if n.startswith(("MEMBAR", "RED", "ATOM"))]


def test_atomics_are_single_instructions_at_system_scope(found):
    names = opcodes(found["kernels"]["atomic_add"])
    assert [n for n in names if n.startswith(("RED", "ATOM"))] == ["REDG.E.ADD.64.STRONG.SYS"]
    names = opcodes(found["kernels"]["atomic_fetch_add"])
    assert [n for n in names if n.startswith(("RED", "ATOM"))] == ["ATOMG.E.ADD.64.STRONG.SYS"]


@pytest.mark.parametrize(
    ("function", "instruction"),
    [("atomic_set", "STG.E.64.STRONG.SYS"), ("atomic_compare_swap", "ATOMG.E.CAS.64.STRONG.SYS"),
     ("atomic_and_int32", "REDG.E.AND.STRONG.SYS"), ("atomic_xor_int32", "REDG.E.XOR.STRONG.SYS"),
     ("atomic_fetch_or", "ATOMG.E.OR.64.STRONG.SYS"),
     ("atomic_fetch_xor", "ATOMG.E.XOR.64.STRONG.SYS"), ("atomic_fetch_float32", "LDG.E.STRONG.SYS")],
)  # fmt: skip
def test_every_atomic_is_one_instruction(function, instruction, found):
    names = opcodes(found["kernels"][function])
    assert [n for n in names if "STRONG" in n] == [instruction]
    assert len(names) <= 20


def polls(opcode):
    return opcode[:3] == ["ld", "relaxed", "sys"]


ACQUIRES = {"ld": lambda opcode: opcode[:3] == ["ld", "acquire", "sys"], "fence": lambda opcode: opcode[:3] == ["fence", "acq_rel", "sys"]}


@pytest.mark.parametrize(
    ("function", "acquires"),
    [("wait_until_all", "fence"), ("wait_until_any", "fence"), ("wait_until_some_vector", "fence"), ("signal_wait_until", "ld")],
)
def test_every_path_out_of_a_wait_has_an_acquire(function, acquires, found):
    """Polls are relaxed; an acquire of the word, or a fence for all elements, follows. In the PTX, as ptxas keeps them all."""
    ptx = found["kernels"][function]["ptx"]
    assert not ptx_machine.reaches(ptx, polls, lambda opcode: opcode[0] == "ret", ACQUIRES[acquires])
    assert len(opcodes(found["kernels"][function])) <= 600


def operand(address, nelems):
    """Return the kernel parameters of an array."""
    return (0, 0, nelems, 0, address, nelems, 0)


IVARS = 0x1000


class Watched(ptx_machine.Memory):
    """A state page, and elements at IVARS whose accesses are recorded; later: their values from the acquire on."""

    def __init__(self, nbytes, later=None):
        super().__init__()
        self.region(window.STATE, window.STATE_SIZE)
        self.store(layout.TIMEOUT_NS, 1 << 40, 8)
        self.region(IVARS, nbytes)
        self.later, self.noted = later, []

    def note(self, what):
        if self.noted[-1:] != [what]:
            self.noted.append(what)

    def load(self, address, nbytes):
        if address < window.STATE:
            self.note("poll")
        return super().load(address, nbytes)

    def load_acquire(self, address, nbytes):
        self.note("acquire")
        return super().load(address, nbytes) if self.later is None else self.later

    def store(self, address, value, nbytes):
        if address < window.STATE:
            self.note("store")
        super().store(address, value, nbytes)

    def fence(self, scope):
        self.note(f"fence.{scope}")


@pytest.mark.parametrize(
    ("function", "later", "noted"),
    [("test", None, ["acquire"]), ("test", 6, ["acquire", "fence.sys"]), ("test_all", None, ["fence.sys"]),
     ("test_any", None, ["fence.sys"]), ("test_some", None, ["fence.sys"])],
)  # fmt: skip
@pytest.mark.parametrize("holds", [False, True])
def test_a_test_acquires_if_the_condition_holds(function, later, noted, holds, found):
    """Before the kernel stores a word that depends on it. With a fence if the value has changed, as its writer may not have released."""
    memory = Watched(16, later)
    for i in range(2):
        ptx_machine.Memory.store(memory, IVARS + 8 * i, 5, 8)
    ptx = found["kernels" if function == "test" else "looks"][function]["ptx"]
    ptx_machine.run(ptx, (*operand(IVARS, 2), 5 if holds else 9), memory)
    assert memory.noted == (["poll", *noted, "store"] if holds else ["poll"])


def test_signal_fetch_acquires(found):
    """It does not know for what the caller looks."""
    memory = Watched(8)
    ptx_machine.run(found["looks"]["signal_fetch"]["ptx"], (*operand(IVARS, 1), 0), memory)
    assert memory.noted == ["acquire", "store"]


@pytest.mark.parametrize(
    ("function", "sizes", "looked_at"),
    [("wait_until_some_vector", (8, 2, 8), 2), ("wait_until_some_vector", (8, 7, 8), 7), ("wait_until_some_vector", (8, 8, 3), 3),
     ("wait_until_some_vector", (8, 8, 7), 7), ("wait_until_some_vector", (4, 8, 8), 4), ("wait_until_all", (8, 5), 5),
     ("wait_until_all", (8, 7), 7)],
)  # fmt: skip
def test_the_shortest_array_limits_the_elements(function, sizes, looked_at, found):
    """If arguments are not checked. Sizes: of ivars; of indices and values, or of status. An access beyond them is an error here."""
    second, third = 0x2000, 0x3000
    memory = Watched(8 * sizes[0])
    memory.region(second, 4 * sizes[1])
    if function == "wait_until_some_vector":
        memory.region(third, 8 * sizes[2])
        last = operand(third, sizes[2])
    else:
        last = (1,)
        for i in range(looked_at):  # the others do not hold
            memory.store(IVARS + 4 * i, 1, 4)
    ptx_machine.run(found["kernels"][function]["ptx"], (*operand(IVARS, sizes[0]), *operand(second, sizes[1]), *last), memory)
    if function == "wait_until_some_vector":  # the kernel writes their number to indices[0]
        assert [memory.load(second + 4 * i, 4) for i in range(looked_at)] == [looked_at, *range(1, looked_at)]


HEAP = window.BASE + window.HEAP_OFFSET

#: Pairs of dest and source, slices of C[4, 3, 5] and of its transpose F[5, 3, 4], and the operand that is refused.
SLICES = [
    ("C[1:3, :, :]", "C[0:2, :, :]", None),
    ("C[1:2, 1:3, :]", "C[3:4, 0:2, :]", None),
    ("C[1:2, 1:2, 2:4]", "C[1:2, 0:1, ::1][:, :, :2]", None),
    ("F[:, :, 1:2]", "F[:, :, 0:1]", None),
    ("F[:, 0:1, 1:2]", "C[0:1, 0:1, :].T", None),
    ("C[:, :, 2:2]", "C[:, :, 1:1]", None),
    ("C[:, :2, :]", "C[:, :2, :]", "dest 0 60 40"),
    ("C[1:3, :, :]", "C[::2, :, :]", "source 0 120 60"),
    ("C[0:1, 0:1, :3]", "C[0:1, 0:1, ::2]", "source 2 8 4"),
    ("C[0:1, ::-1, :]", "C[0:1, :, :]", "dest 1 -20 20"),
    ("C[1:2, :, :4][:, :, :1]", "C[0:1, :, :1]", "dest 1 20 4"),
    ("F[:, :, 0:1]", "C[0:1, :, :].reshape(5, 3, 1)", "order"),
]


@pytest.mark.parametrize(("dest", "source", "refused"), SLICES)
def test_slices_are_checked_at_run_time(dest, source, refused, found):
    """Compiled for arrays of layout A. A refused call copies nothing, and records operand, axis, stride and the right stride."""
    cube = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    held, read = ({"C": whole, "F": whole.T} for whole in (np.zeros_like(cube), cube))
    arrays = [(eval(dest, held), held["C"], 0x1000), (eval(source, read), read["C"], HEAP)]
    memory = ptx_machine.Memory()
    page, local, heap = memory.region(window.STATE, window.STATE_SIZE), memory.region(0x1000, 240), memory.region(HEAP, 240)
    alarm = memory.region(layout.ALARM, layout.WORD)  # because the page, and so HOST_WORDS, is zero
    heap[:] = cube.tobytes()
    arguments = []
    for view, whole, address in arrays:
        arguments += [0, 0, view.size, 4, address + view.ctypes.data - whole.ctypes.data, *view.shape, *view.strides]
    ptx_machine.run(found["slices"]["ptx"], arguments, memory)
    assert any(alarm) == (refused is not None)
    at = layout.ERROR - window.STATE
    kind, op, *_, wanted, apart, which, _, _ = layout.ERROR_RECORD.unpack(page[at : at + layout.ERROR_RECORD.size])
    if refused is None:
        arrays[0][0].T[:] = arrays[1][0].T
        assert kind == 0
    elif refused == "order":
        assert (kind, apart) == (refusals.kind_of("different order"), 2)
    else:
        operand = operation.operand(operation.NAMES[op], which & 0xFF)
        apart -= (apart >> 63) << 64
        assert (kind, f"{operand} {which >> state.AXIS_SHIFT} {apart} {wanted}") == (refusals.kind_of("gaps"), refused)
    assert bytes(local) == held["C"].tobytes()


def test_wait_polls_the_word_itself_and_ends_with_an_acquire(found):
    names = opcodes(found["kernels"]["signal_wait_until"])
    polls = [i for i, n in enumerate(names) if n == "LDG.E.64.STRONG.SYS"]
    assert len(polls) >= 2
    assert not [n for n in names if n.startswith("NANOSLEEP")]
    acquire = max(i for i, n in enumerate(names) if n == "CCTL.IVALL")  # later loads do not hit stale lines in L1
    assert acquire > max(polls)
    assert not [n for n in names[acquire:] if n.startswith(("LD.", "LDG"))]


@pytest.mark.parametrize("function", ["barrier_all", "sync_all"])
def test_barrier_all_completes_before_it_stores_a_flag(function, found):
    """sync_all orders nothing."""
    ordered = [n for n in opcodes(found["kernels"][function]) if n in ("STG.E.64.STRONG.SYS", "MEMBAR.ALL.SYS", "MEMBAR.SC.SYS")]
    assert ordered[: ordered.index("STG.E.64.STRONG.SYS")] == (["MEMBAR.SC.SYS"] if function == "barrier_all" else [])


class Flags(ptx_machine.Memory):
    """The state page of PE 0, and the flags of all PEs, set for the first barrier; records which are used."""

    def __init__(self, n_pes):
        super().__init__()
        self.noted = []
        self.region(window.STATE, window.STATE_SIZE)
        for address, value in {layout.N_PES: n_pes, layout.TIMEOUT_NS: 1 << 40}.items():
            super().store(address, value, 8)
        for pe in range(n_pes):
            self.region(window.BASE + (pe << window.STRIDE_SHIFT) + layout.ALL_ROWS, n_pes * layout.ROW_SIZE, 1 if pe == 0 else 0)

    def note(self, what, address):
        if address >= window.BASE:
            pe, offset = divmod(address - window.BASE, 1 << window.STRIDE_SHIFT)
            self.noted.append(f"{what} {(offset - layout.ALL_ROWS) / layout.ROW_SIZE:g} of PE {pe}")

    def load(self, address, nbytes):
        self.note("poll", address)
        return super().load(address, nbytes)

    def load_acquire(self, address, nbytes):
        self.note("acquire", address)
        return super().load(address, nbytes)

    def store(self, address, value, nbytes):
        self.note("store", address)
        super().store(address, value, nbytes)

    def fence(self, scope):
        self.noted.append(f"fence.{scope}")


@pytest.mark.parametrize("function", ["barrier_all", "sync_all"])
@pytest.mark.parametrize("n_pes", [1, 4, 32, 33])
def test_a_barrier_stores_flags_and_acquires_those_it_waits_for(function, n_pes, found):
    """Up to 32 PEs meet in one round; more in rounds, each of which passes on what it has acquired. barrier_all begins with a fence."""
    memory, ptx = Flags(n_pes), found["kernels"][function]["ptx"]
    ptx_machine.run(ptx, (), memory)
    assert len(re.findall(r"\bst\.relaxed\.gpu\b", ptx)) == 1  # of the epoch: flags are for other GPUs
    fence = ["fence.sys"] * (function == "barrier_all")
    if n_pes <= 32:
        others = range(1, n_pes)
        assert memory.noted == [*fence, *(f"store 0 of PE {i}" for i in others), *(f"acquire {n_pes - i} of PE 0" for i in others)]
    else:
        rounds = ((f"store 0 of PE {1 << k}", f"acquire {n_pes - (1 << k)} of PE 0", "fence.sys") for k in range(6))
        assert memory.noted == [*fence, *(what for round_ in rounds for what in round_)]
    assert memory.load(layout.ALL_EPOCH, 8) == 1


def test_every_thread_that_stores_a_flag_of_a_barrier_fences_before(found):
    """A fence orders the stores of its own thread after what happens before it."""
    memory = Flags(5)
    ptx_machine.run(found["warp"]["barrier_all"]["ptx"], (), memory, lanes=4)
    lanes = [part for i in range(1, 5) for part in ("fence.sys", f"store 0 of PE {i}")]
    assert [noted for noted in memory.noted if not noted.startswith("acquire")] == lanes


# ----------------------------------------------------------------------------------------------------- dtypes and refusals


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_compiles(dtype, found):
    """In p, g and put."""
    assert found["dtypes"][dtype] is None


@pytest.mark.parametrize(("call", "text"), REFUSALS)
def test_refusal_names_function_and_argument(call, text, found):
    said = found["refusals"][call]
    assert said is not None, "it compiles"
    assert said.startswith("TypingError: "), said
    assert text in said
    sentence = next(line for line in said.splitlines() if text in line)
    assert len(sentence) < 300


def test_a_launch_that_does_not_compile(found):
    """The error is a sentence; while it compiles, hang reports name the kernel."""
    said, *compiled = found["launched"]
    assert re.fullmatch(r"module 'pgas' has no attribute 'puut' \(<string>:\d+\)", said)
    assert compiled == ["stencil", ""]


@pytest.mark.parametrize("call", ACCEPTED)
def test_accepted(call, found):
    assert found["accepted"][call] is None


def test_strided_copies_of_the_host_compile(found):
    """For elements of every kind, without spills, in blocks of 1024 threads."""
    assert len(found["host"]) == 8
    assert {spills for spills, _ in found["host"].values()} == {0}
    assert max(registers for _, registers in found["host"].values()) <= 64
