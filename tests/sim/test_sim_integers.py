"""Numbers of kernels in the simulator: types and values are those of the same functions compiled by Numba for the CPU."""

import itertools

import numpy as np
import pytest

import pgas

# isort: split
import numba
from numba import cuda
from numba.cuda import random

pytestmark = pytest.mark.skipif(not pgas.SIMULATOR, reason="tests the simulator")

TYPES = [np.dtype(name) for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()]  # noqa: SIM905
#: Pairs for which Python or NumPy computes otherwise than Numba; the other pairs are slow tests.
TELLING = ("int32 int32", "uint64 int64", "uint32 int8", "bool uint64", "float32 int64", "int16 float32", "bool bool")
BITS = [dtype for dtype in TYPES if dtype.kind != "f"]


def arithmetic(a, b):
    return a + b, a - b, a * b, a / b, a // b, a % b, a * 3 + b, 7 - a, a * 2.5, b + 0.1, -a, +a


def bits(a, b):
    return a & b, a | b, a ^ b, ~a, a << (b & 63), a >> (b & 63), a << 3, a >> 1, a ^ 0x5555, 1 << (a & 31), (a << 13) ^ a


def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b, a < 5, a == -1, (a < b) + (b < a), (a > 0) - (a < 0), not a


def builtin(a, b):
    return min(a, b), max(a, b), a**2, a ** (b != 0), int(a), bool(a), int(b) * 3, np.uint32(a), np.int16(b) + a


def conversions(a, b):
    return abs(a), float(a), round(a / 3), divmod(a, b)[1], divmod(5, b)[0], np.float32(a) * np.float32(b), np.uint64(b) // 3


def loops(a, b):
    x = a * 6364136223846793005 + b
    for i in range(3):
        x = x * 6364136223846793005 + i
    for i in range(b & 7):
        x ^= i << 40
    return x, i


def values(dtype):
    if dtype.kind == "b":
        return [np.True_]
    if dtype.kind == "f":
        return [dtype.type(number) for number in (1.1, 7, 3e4)]
    info = np.iinfo(dtype)
    return [dtype.type(number) for number in (3, 77, info.max, info.max // 3 * 2 + 1, info.min + 1)]


def defined(function, one, other):
    """Whether both Numba and C define all results of a function for two types."""
    if function in (bits, loops):
        return one in BITS and other in BITS
    return function is not conversions or "b" not in one.kind + other.kind


def kind_of(value):
    return np.dtype({bool: np.bool_, int: np.int64, float: np.float64}.get(type(value)) or value.dtype).name


@pytest.mark.parametrize("function", [arithmetic, bits, comparisons, builtin, conversions, loops], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(a, b, id=f"{a}-{b}", marks=() if f"{a} {b}" in TELLING else pytest.mark.slow)
        for a, b in itertools.product(TYPES, TYPES)
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_as_compiled(function, one, other):
    if not defined(function, one, other):
        return
    compiled, called, found = numba.njit(error_model="numpy")(function), cuda.jit(device=True)(function), []

    @cuda.jit
    def kernel(a, b):
        found.append(called(a, b))

    for a, b in itertools.product(values(one), values(other)):
        kernel[1, 1](a, b)
        wanted = compiled(a, b)
        kinds = [str(kind) for kind in compiled.overloads[numba.typeof(a), numba.typeof(b)].signature.return_type]
        assert list(zip(map(kind_of, found[-1]), found[-1], strict=True)) == list(zip(kinds, wanted, strict=True)), (a, b)


@pytest.mark.filterwarnings("error")
def test_random_numbers_are_those_of_the_host():
    """The generator's functions are compiled on the host."""
    states = random.create_xoroshiro128p_states(2, seed=7)
    of_host, found = states.copy_to_host(), np.zeros((2, 3), np.uint64)

    @cuda.jit
    def kernel(states, found):
        for i in range(3):
            found[cuda.threadIdx.x, i] = random.xoroshiro128p_next(states, cuda.threadIdx.x)

    kernel[1, 2](states, found)
    wanted = [[random.xoroshiro128p_next(of_host, thread) for _ in range(3)] for thread in range(2)]
    assert found.tolist() == wanted


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_stores_wrap(dtype):
    largest = np.iinfo(dtype).max
    of_host = np.array([largest], dtype)
    array = cuda.to_device(of_host)

    @cuda.jit
    def kernel(array):
        array[0] += 1
        shared = cuda.shared.array(1, numba.int16)
        shared[0] = array[0] + 70_000
        array[0] += shared[0] != 0

    kernel[1, 1](array)
    assert array.copy_to_host()[0] == np.iinfo(dtype).min + 1


def test_views_have_the_same_bits():
    @cuda.jit
    def kernel(bits, floats, words):
        i = cuda.threadIdx.x
        floats[i] = np.uint32(bits[i]).view(np.float32)
        words[i] = np.int16(-1).view(np.uint16) + np.float32(-2).view(np.uint32) + np.int64(-1).view(np.uint64) + 1

    numbers = np.array([1.5, -0.0, np.inf, 1e-40], np.float32)
    floats, words = np.zeros(4, np.float32), np.zeros(4, np.int64)
    kernel[1, 4](numbers.view(np.int32), floats, words)
    assert floats.tobytes() == numbers.tobytes()
    assert set(words) == {0xFFFF + 0xC0000000}


def test_a_range_can_be_used_twice():
    found = []

    @cuda.jit
    def kernel(n):
        numbers, count = range(0, n, 2), 0
        for _ in range(2):
            for i in numbers:
                count += i
        found.append((count, len(numbers), numbers[1], 4 in numbers, len(range(5000)), [~bool(n)]))

    kernel[1, 1](10)
    assert found == [(40, 5, 2, True, 5000, [False])]


def test_names_are_those_of_the_first_launch_of_each_kernel():
    import types

    module, found = types.ModuleType("parameters"), []
    names = {"cuda": cuda, "module": module, "found": found}
    one = "@cuda.jit\ndef {}():\n    found.append(module.N + later)\n"
    exec(one.format("first") + one.format("second"), names)
    module.N = 4
    with pytest.raises(NameError, match="later"):
        names["first"][1, 1]()
    names["later"] = 1
    names["first"][1, 1]()
    module.N = 8
    names["first"][1, 1]()
    names["second"][1, 1]()
    assert found == [5, 5, 9]
