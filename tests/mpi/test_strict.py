"""PGAS_DEBUG=strict: the simulator's arrays offer only what a GPU's do on the host, and kernels must compile. Run last, without a job."""

import inspect
import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from conformance.ring import ring_works
from numba import int32
from numba.cuda import syncthreads

import pgas
from pgas import cuda
from pgas.job import strict

pytestmark = pytest.mark.skipif(not pgas.SIMULATOR, reason="the simulator's arrays")

INSTEAD = "(PGAS_DEBUG=strict): use copy_to_host() and copy_to_device(), or a kernel"
SUBSCRIPTS = {"m": "an array", "[0, 2]": "a list", "...": "...", "None": "None", "True": "True"}

#: Expressions with an array a of 4 integers and an array m of booleans, and the refused operation.
REFUSED = {
    "a + 1": "operator +",
    "1 + a": "operator +",
    "a - a": "operator -",
    "a == 1": "operator ==",
    "a < a": "operator <",
    **{f"a.{name}": name for name in ("fill", "sum", "astype", "tolist", "copy", "itemsize")},
}

#: Expressions that work on GPUs.
OFFERED = (
    "a[0]", "a[-1]", "a[1:3]", "a[0] = 5", "a[:] = 3", "a[1:3] = np.arange(2, dtype=np.int32)", "a.copy_to_host()",
    "a.reshape(2, 2)[1, 0]", "a.reshape(2, 2)[:, 1]", "a.T", "a.view(np.uint32)", "a.ravel()", "a.squeeze()",
    "a.shape, a.strides, a.dtype, a.size, a.ndim, a.nbytes", "a.copy_to_device(np.ones(4, np.int32))", "np.asarray(a.copy_to_host())",
    "len(a)", "a.is_c_contiguous()", "repr(a)", "a += 1", "a[:2] *= 2",
)  # fmt: skip


GIVEN, TABLED = None, np.arange(2)
SIZE, TABLE, ELSEWHERE = 4, {"a": 1}, ModuleType("elsewhere")


@pgas.jit(device=True)
def one_more(value):
    return value + 1


@pgas.jit(device=True)
def tried(array):
    try:
        array[0] = 1
    except Exception:
        array[0] = 2


@pgas.jit
def compiles(array, n):
    """With globals of every kind, which another process gets."""
    shared = cuda.shared.array(SIZE, int32)
    shared[cuda.threadIdx.x] = one_more(n)
    syncthreads()
    pgas.put(array[::1], array, pgas.my_pe())
    array[0] = shared[0] + GIVEN[0] - TABLED[1]


@pgas.jit
def op_of_a_variable(array, n):
    op = pgas.SUM if n > 1 else pgas.MAX
    pgas.reduce(pgas.TEAM_WORLD, array, array, op)


@pgas.jit
def f_string(array, n):
    array[0] = len(f"{n}")


@pgas.jit
def global_dict(array, n):
    array[0] = TABLE["a"]


@pgas.jit
def tries(array, n):
    tried(array)


@pgas.jit
def comprehension(array, n):
    array[0] = [2 * i for i in range(n)][1]


@pgas.jit
def zeros_of_numpy(array, n):
    array[0] = np.zeros(4)[n]


@cuda.jit
def shared_of_a_variable(array, n):
    shared = cuda.shared.array(n, int32)
    array[0] = shared.size


@pgas.jit
def of_elsewhere(array, n):
    array[0] = ELSEWHERE.value if n > 2 else 3


#: Kernels that only the simulator runs, with the reason and the refused line.
NOT_COMPILED = {
    op_of_a_variable: ("pgas.SUM or pgas.MAX is chosen at run time; write a call for each", "op = pgas.SUM if n > 1 else pgas.MAX"),
    f_string: ("kernels cannot make strings of numbers, such as f-strings", 'array[0] = len(f"{n}")'),
    global_dict: ("kernels cannot use the global TABLE of type dict", 'array[0] = TABLE["a"]'),
    tries: ("kernels cannot have try and except", "array[0] = 1"),
    comprehension: ("kernels cannot have lists, sets, and dicts; use cuda.local.array", "array[0] = [2 * i for i in range(n)][1]"),
    zeros_of_numpy: ("kernels cannot make arrays; use cuda.local.array or cuda.shared.array", "array[0] = np.zeros(4)[n]"),
    shared_of_a_variable: ("the shape in cuda.shared.array must be constant", "shared = cuda.shared.array(n, int32)"),
}


def test_kernels_are_compiled_for_a_gpu(monkeypatch, capfd):
    """Those that Numba refuses do not run."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    monkeypatch.setitem(sys.modules, "elsewhere", ELSEWHERE)
    ELSEWHERE.__dict__.update(__spec__=pgas.__spec__, value=1)
    monkeypatch.setenv("PGAS_DEBUG", "strict")
    with pgas.init():
        array, given = pgas.zeros(4, np.int32), pgas.full(4, 1, np.int32)
        monkeypatch.setattr(sys.modules[__name__], "GIVEN", given)
        compiles[1, 4](array, 41)
        pgas.synchronize()
        assert array.copy_to_host()[0] == 42
        for kernel, (reason, line) in NOT_COMPILED.items():
            number = 1 + next(n for n, text in enumerate(lines) if text.strip() == line)
            with pytest.raises(TypeError) as refused:
                kernel[1, 1](array, 2)
            where = f"({__file__}:{number}: {line})"
            assert str(refused.value) == f"PGAS_DEBUG=strict: a GPU's compiler rejects kernel {kernel.__name__}: {reason} {where}"
        capfd.readouterr()
        of_elsewhere[1, 1](array, 2)
        said = "pgas: PGAS_DEBUG=strict: kernel of_elsewhere was not compiled for a GPU: ModuleNotFoundError: No module named 'elsewhere'\n"
        assert capfd.readouterr().err == (said if pgas.my_pe() == 0 else "")
        pgas.free(given)
        pgas.free(array)
    monkeypatch.delenv("PGAS_DEBUG")
    with pgas.init():
        array = pgas.zeros(4, np.int32)
        global_dict[1, 1](array, 2)
        pgas.free(array)


def test_without_libnvvm():
    program = """
from pgas.job import gpu_verdicts
def ir_version():
    raise RuntimeError("no libnvvm.so.4")
print(gpu_verdicts.missing())
gpu_verdicts.nvvm.ir_version = ir_version
print(gpu_verdicts.missing())
"""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "\nlibNVVM is missing, which pip install 'pgas[cu13]' brings (no libnvvm.so.4)\n", done.stderr


@pgas.jit
def first_field(records, out):
    out[0] = records[1].x + records["x"][1]


def test_arrays_are_as_on_gpus(monkeypatch):
    """Also if a job that is not strict follows."""
    monkeypatch.setenv("PGAS_DEBUG", "strict")
    with pgas.init():
        scope = {"a": pgas.zeros(4, np.int32), "m": np.array([True, False, True, False]), "np": np}
        for text, what in REFUSED.items():
            with pytest.raises((TypeError, AttributeError)) as refused:
                exec(text, scope)
            assert str(refused.value) == f"on GPUs a symmetric array has no {what} on the host {INSTEAD}", text
        for idx, what in SUBSCRIPTS.items():
            for text in (f"a[{idx}]", f"a[{idx}] = 1"):
                with pytest.raises(TypeError) as refused:
                    exec(text, scope)
                only = "on GPUs symmetric arrays take only integers and slices as subscripts on the host"
                assert str(refused.value) == f"{only}, not {what} {INSTEAD}", text
        assert not scope["a"].copy_to_host().any()
        for text in OFFERED:
            exec(text, scope)
        records, out = pgas.zeros(2, np.dtype([("x", np.int32)])), pgas.zeros(1, np.int32)
        records.copy_to_device(np.array([(1,), (21,)], records.dtype))
        first_field[1, 1](records, out)
        assert out[0] == 42  # kernels are not restricted
        for array in (out, records, scope["a"]):
            pgas.free(array)
        ring_works()
    monkeypatch.delenv("PGAS_DEBUG")
    with pgas.init():
        array = pgas.zeros(4, np.int32)
        array.fill(2)
        assert array.sum() == 8
        pgas.free(array)


def test_the_attributes_are_those_of_a_gpu_s_array():
    program = """
from numba.cuda.cudadrv.devicearray import DeviceNDArray
import ast, inspect, textwrap
from numba.cuda.cudadrv import devicearray
names = {name for name in dir(DeviceNDArray)}
for cls in DeviceNDArray.__mro__[:-1]:
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls.__dict__["__init__"])))) if "__init__" in cls.__dict__ else ():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
print(*sorted(name for name in names if not name.startswith("_")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == strict.ATTRIBUTES, done
