"""PGAS_DEBUG=strict: on the host, the simulator's symmetric arrays offer only what a GPU's do. These tests run last, without a job."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conformance.ring import ring_works

import pgas
from pgas.job import strict

pytestmark = pytest.mark.skipif(not pgas.SIMULATOR, reason="the simulator's arrays")

INSTEAD = "(PGAS_DEBUG=strict): use copy_to_host() and copy_to_device(), or a kernel"
SUBSCRIPTS = {"m": "an array", "[0, 2]": "a list", "...": "...", "None": "None", "True": "True"}

#: Expressions with an array a of 4 integers and an array m of booleans, and the refused operation.
REFUSED = {
    "a += 1": "operator +=",
    "a //= 2": "operator //=",
    "a + 1": "operator +",
    "1 + a": "operator +",
    "a - a": "operator -",
    "a == 1": "operator ==",
    "a < a": "operator <",
    "a[:2] += 1": "operator +=",
    **{f"a.{name}": name for name in ("fill", "sum", "astype", "tolist", "copy", "itemsize")},
}

#: Expressions that work on GPUs.
OFFERED = (
    "a[0]", "a[-1]", "a[1:3]", "a[0] = 5", "a[:] = 3", "a[1:3] = np.arange(2, dtype=np.int32)", "a.copy_to_host()",
    "a.reshape(2, 2)[1, 0]", "a.reshape(2, 2)[:, 1]", "a.T", "a.view(np.uint32)", "a.ravel()", "a.squeeze()",
    "a.shape, a.strides, a.dtype, a.size, a.ndim, a.nbytes", "a.copy_to_device(np.ones(4, np.int32))", "np.asarray(a.copy_to_host())",
    "len(a)", "a.is_c_contiguous()", "repr(a)",
)  # fmt: skip


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
