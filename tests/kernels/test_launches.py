"""Parameters of launches that do not go through Numba's dispatcher: the bytes that Numba would give to the driver."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.sass

PROGRAM = """
import ctypes, struct
from types import SimpleNamespace
import numpy as np
import pgas
from numba.cuda import dispatcher, types
from numba.cuda.typing.typeof import Purpose, typeof
from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler import launches

class Kernel:
    extensions, _prepare_args = (), dispatcher._Kernel._prepare_args

def by_numba(values):
    flat = []
    for value in values:
        Kernel()._prepare_args(typeof(value, Purpose.argument), value, 0, [], flat)
    slots = [bytes(one) if isinstance(one, ctypes._SimpleCData) else struct.pack("<q", int(one)) for one in flat]
    return b"".join(slot.ljust(8, bytes(1)) for slot in slots)

kinds = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64)
values = (1, -5, 2**63 - 1, -2**63, True, False, 1.5, -0.0, SignalOp.ADD, np.bool_(True), *(kind(3) for kind in kinds))
for value in (*values, (1, 2.5), (1, (np.float32(2), True)), values):
    codes, parameters = launches.packed((value,))
    assert parameters == by_numba((value,)), (value, parameters, by_numba((value,)))
    assert len(parameters) % 8 == 0

# Arguments of different types have different codes, also if their bytes are the same.
codes = {launches.packed((v,))[0] for v in (1, 1.0, True, np.int32(1), np.uint64(1), np.float32(1), (1,), ((1,),), (1.0,), SignalOp.ADD)}
assert len(codes) == 10, codes
assert launches.packed((1, 2))[0] == launches.packed((-3, 4))[0] != launches.packed((1, np.uint64(2)))[0]

# What only Numba can convert.
class Number(int):
    pass

assert launches.packed((Number(3),)) == launches.packed((3,))
for value in (None, "text", 1j, np.complex64(1), np.zeros(3), [1], 2**63, 2**64, (1, None), {}, Number(2**63)):
    assert launches.packed((0, value)) is None, value

# A flat array has the code of Numba's own type, and its parameters in Numba's order.
made = []
one = launches.Argument(0x1000, 5, np.dtype(np.uint16), lambda *given: made.append(given) or given)
(code,), parameters = launches.packed((one,))
assert code == types.Array(types.uint16, 1, "C")._code
assert struct.unpack("<7q", parameters) == (0, 0, 5, 2, 0x1000, 5, 2)
assert launches.unpacked((one, 3, (one, 4))) == ((0x1000, 5, np.dtype(np.uint16)), 3, ((0x1000, 5, np.dtype(np.uint16)), 4))

# So has a contiguous tensor of PyTorch, whatever its strides along axes of one element. Numba converts, or rejects, all others.
class Tensor:
    requires_grad, is_cuda, contiguous, dtype = False, True, True, "torch.float32"

    def __init__(self, *shape, **different):
        self.shape = shape
        self.__dict__.update(different)

    @property
    def __cuda_array_interface__(self):
        if self.dtype != "torch.float32" or self.requires_grad:
            raise RuntimeError("no interface")
        return {"typestr": "<f4", "shape": self.shape, "strides": None, "data": (0x2000, False), "version": 2}

    def data_ptr(self):
        return 0x2000

    def numel(self):
        return int(np.prod(self.shape))

    def element_size(self):
        return 4

    def is_contiguous(self):
        return self.contiguous

for shape, strides in (((), ()), ((5,), (4,)), ((3, 1, 7), (28, 28, 4))):
    for _ in range(2):
        (code,), parameters = launches.packed((Tensor(*shape),))
        assert code == types.Array(types.float32, len(shape), "C")._code == typeof(Tensor(*shape), Purpose.argument)._code
        n = int(np.prod(shape))
        assert struct.unpack(f"<{5 + 2 * len(shape)}q", parameters) == (0, 0, n, 4, 0x2000, *shape, *strides)
others = {"requires_grad": True}, {"is_cuda": False}, {"contiguous": False}, {"shape": (0, 2)}, {"dtype": "torch.bfloat16"}
for different in others:
    assert launches.packed((1, Tensor(5, **different))) is None, different

# The driver finds each parameter in its slot.
def record(function, gx, gy, gz, bx, by, bz, shared, stream, slots, extra):
    seen.append((int(function), gx, gy, gz, bx, by, bz, shared, int(stream), extra))
    for i, slot in enumerate((ctypes.c_void_p * 4).from_address(slots)):
        seen.append(ctypes.string_at(slot, 8))
    return (refuses,)

seen, refuses = [], 0
launches.driver.cuLaunchKernel = record
launches.driver.cuLaunchCooperativeKernel = lambda *given: record(*given, "all at once")
launch = launches.DriverLaunch(SimpleNamespace(handle=77), (1, 2, 3), (32, 1, 1), 48, 9, 32, cooperative=False)
_, parameters = launches.packed((1, 2.5, np.int32(-4), True))
assert launch(parameters)
words = struct.pack("<q", 1), struct.pack("<d", 2.5), struct.pack("<i4x", -4), b"\\1" + bytes(7)
assert seen == [(77, 1, 2, 3, 32, 1, 1, 48, 9, 0), *words], seen
del seen[:]
assert launches.DriverLaunch(SimpleNamespace(handle=77), (1, 2, 3), (32, 1, 1), 48, 9, 32, cooperative=True)(parameters)
assert seen == [(77, 1, 2, 3, 32, 1, 1, 48, 9, "all at once"), *words], seen
refuses = 201
assert not launch(parameters)
refuses = 0
with launch._lock:  # as in a signal handler
    assert not launch(parameters)
assert launch(parameters)

# The parameter of an argument that changes from launch to launch.
for args, place in (((one, 7, 2), (1,)), ((one, (2, one, 7)), (1, 2)), (((7,), 1), (0, 0)), ((1, (2.5, (one, 7.5))), (1, 1, 1))):
    at = launches.offset(args, place)
    assert launches.packed(args)[1][at : at + 8] == launches.packed((7.5 if place == (1, 1, 1) else 7,))[1], (args, at)

# Also next to an argument that only Numba can convert, a flat array becomes one of Numba.
assert launches.packed((one, None)) is None
assert launches.unpacked((one, None)) == ((0x1000, 5, np.dtype(np.uint16)), None)
print("right")
"""


def test_parameters_are_those_of_numba():
    """Scalars, tuples and flat arrays; arrays of Numba, which need a GPU, are in conformance tests."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "right\n", done.stderr
