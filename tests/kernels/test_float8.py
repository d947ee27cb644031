"""Elements of float8 types in kernels: copied as bytes, and refused by name in everything else, in the simulator and by the compiler."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from compiled import LIMIT
from examples import ROOT

import pgas
from pgas import cuda
from pgas.native.dtypes import FLOAT8, ONLY_COPIED

NAMES = [dtype.name for dtype in FLOAT8]

#: Statements of a kernel with two arrays of float8_e4m3fn, d and s, one of float8_e5m2, o, and one of float32, f.
REFUSED = [
    "d[0] = s[0] + s[1]", "d[0] = f[0] * s[0]", "d[0] = s[0] - 1", "d[0] += s[0]", "d[0] = -s[0]", "d[0] = abs(s[0])",
    "d[0] = max(s[0], s[1])", "f[0] = s[0] == s[1]", "f[0] = s[0] < 1.5", "if s[0]: f[0] = 1", "f[0] = s[0]", "f[0] = float(s[0])",
    "f[0] = int(s[0])", "f[0] = np.float32(s[0])", "d[0] = 1.0", "d[0] = f[0]", "o[0] = s[0]", "f[:] = s[:4]", "o[:] = s",
    "d[0] = ml_dtypes.float8_e4m3fn(1)", "d[0] = ml_dtypes.float8_e4m3fn(s[0])", "cuda.atomic.add(d, 0, 1.0)", "print(s[0])",
]  # fmt: skip
LOCAL = "d[0] = cuda.local.array(4, d.dtype)[0]"

COMPILED = """
import json, sys
from pgas import sass  # first: it chooses the real compiler
import ml_dtypes, numpy as np
import pgas
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype
from pgas.kernels.compiler.reason import reason
from test_float8 import LOCAL, NAMES, REFUSED, collected, kernel_of, moved

def array(name):
    return types.Array(from_dtype(np.dtype(name)), 1, "C")

def refusal(body):
    kernel = kernel_of(body)
    try:
        sass.compile_ptx(kernel, tuple(map(array, ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "float32"))))
    except Exception as error:
        return reason(error, kernel)

def accepted(kernel, *kinds):
    sass.compile_ptx(kernel, kinds)

accepted(collected, types.int64, array("float8_e5m2"), array("float8_e5m2"), array("int64"))

def code(name):
    return sass.build(moved, (array(name), array(name), array("uint64"), types.int32)).instructions

found = {"refused": {body: refusal(body) for body in [*REFUSED, LOCAL]}, "code": {name: code(name) for name in [*NAMES, "uint8"]}}
json.dump(found, sys.stdout)
"""


def kernel_of(body):
    scope = {"np": np, "cuda": cuda, "ml_dtypes": ml_dtypes}
    exec(f"def kernel(d, s, o, f):\n    {body}", scope)
    return scope["kernel"]


def moved(dest, source, sig, pe):
    """Everything that takes float8 elements, apart from collectives."""
    i = cuda.threadIdx.x
    pgas.p(dest, i, source[i], pe)
    dest[i + 32] = pgas.g(source, i, pe)
    one = source[0] if i else source[1]
    dest[i + 64] = one
    pgas.put(dest, source, pe)
    pgas.get_nbi_block(dest, source, pe)
    pgas.iput(dest, source, 2, 3, pe)
    pgas.put_signal_warp(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)


def collected(team, dest, source, counts):
    pgas.fcollect_block(team, dest, source)
    pgas.collect_block(team, dest, source)
    pgas.broadcast_block(team, dest, source, 0)
    pgas.alltoall_block(team, dest, source)
    pgas.alltoallv_block(team, dest, counts, counts, source, counts, counts)


@pytest.fixture(scope="module")
def compiled():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | {
        "NUMBA_ENABLE_CUDASIM": "0",
        "PYTHONPATH": os.pathsep.join(("tests/kernels", "tests/support")),
    }
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def launched(body):
    """Run a body in the simulator, and return the text of its error."""
    arrays = [cuda.to_device(np.zeros(8, dtype)) for dtype in ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2")]
    with pytest.raises(TypeError) as caught:
        cuda.jit(kernel_of(body))[1, 1](*arrays, cuda.to_device(np.zeros(4, np.float32)))
    return str(caught.value)


def test_all_types_of_ml_dtypes():
    assert sorted(NAMES) == sorted(name for name in dir(ml_dtypes) if name.startswith("float8_"))
    assert {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"} < set(NAMES)


def sentences():
    """The sentence for e4m3fn, which every body has, or for e5m2, which is named where an element of e4m3fn is assigned to one."""
    return [ONLY_COPIED.format(name) for name in ("float8_e4m3fn", "float8_e5m2")]


@pytest.mark.skipif(not pgas.SIMULATOR, reason="tests the simulator")
@pytest.mark.parametrize("body", REFUSED)
def test_the_simulator_refuses(body):
    assert any(sentence in launched(body) for sentence in sentences())


@pytest.mark.skipif(not pgas.SIMULATOR, reason="tests the simulator")
def test_the_simulator_refuses_local_arrays_and_arguments():
    assert launched(LOCAL).endswith("unsupported type: float8_e4m3fn")
    with pytest.raises(TypeError, match="elements of type float8_e5m2"):
        cuda.jit(lambda array, value: None)[1, 1](cuda.to_device(np.zeros(1)), ml_dtypes.float8_e5m2(1))


@pytest.mark.skipif(not pgas.SIMULATOR, reason="tests the simulator")
@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_copies_bits(name):
    """Also NaNs: no element is converted on its way."""

    @cuda.jit
    def copy(dest, source):
        i = cuda.grid(1)
        dest[255 - i] = source[i]

    dest, bits = cuda.to_device(np.zeros(256, name)), np.arange(256, dtype=np.uint8)
    copy[4, 64](dest, cuda.to_device(bits.view(name)))
    assert dest.copy_to_host().view(np.uint8).tolist() == bits[::-1].tolist()


@pytest.mark.sass
@pytest.mark.parametrize("body", REFUSED)
def test_the_compiler_refuses(body, compiled):
    found = compiled["refused"][body]
    assert any(found.startswith(sentence) for sentence in sentences()), found


@pytest.mark.sass
def test_the_compiler_refuses_local_arrays(compiled):
    assert compiled["refused"][LOCAL].startswith("unsupported type: float8_e4m3fn")


@pytest.mark.sass
@pytest.mark.parametrize("name", NAMES)
def test_the_code_is_that_of_bytes(name, compiled):
    assert compiled["code"][name] == compiled["code"]["uint8"]
