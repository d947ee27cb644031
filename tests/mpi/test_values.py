"""The host refuses values that an element cannot hold and unknown codes; kernels convert values as documented for p()."""

import math

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC

import pgas

# isort: split
from numba import cuda

INT32 = "must be from -2147483648 to 2147483647, the range of int32, not"
UINT64 = "must be from 0 to 18446744073709551615, the range of uint64, not"
CODES = {
    "op": "pgas.SIGNAL_SET (0), pgas.SIGNAL_ADD (1)",
    "cmp": ", ".join(f"pgas.{name} ({number})" for number, name in enumerate(("EQ", "NE", "GT", "LE", "LT", "GE"))),
}


def test_refused_on_the_host(heap):
    number, narrow, word = heap.zeros(4, np.int32), heap.zeros(4, np.int8), heap.zeros(4, np.uint64)
    cases = [
        (ValueError, f"pgas.p: value {INT32} 1099511627776", pgas.p, number, 0, 1 << 40, 0),
        (ValueError, f"pgas.p: value {INT32} nan", pgas.p, number, 0, math.nan, 0),
        (ValueError, f"pgas.p: value {INT32} 1e+20", pgas.p, number, 0, 1e20, 0),
        (ValueError, "pgas.p: value must be from -128 to 127, the range of int8, not 300", pgas.p, narrow, 0, 300, 0),
        (TypeError, "pgas.p: value is of type complex, which an element of type int32 cannot hold", pgas.p, number, 0, 1j, 0),
        (TypeError, "pgas.p: value is of type str, which an element of type int32 cannot hold", pgas.p, number, 0, "1", 0),
        (ValueError, f"pgas.atomic_add: value {INT32} 4294967296", pgas.atomic_add, number, 0, 1 << 32, 0),
        (ValueError, f"pgas.atomic_compare_swap: cond {INT32} 4294967296", pgas.atomic_compare_swap, number, 0, 1 << 32, 0, 0),
        (ValueError, f"pgas.signal_op: value {UINT64} -1", pgas.signal_op, word, 0, -1, pgas.SIGNAL_SET, 0),
        (TypeError, "pgas.signal_op: value must be an integer, not 1.5", pgas.signal_op, word, 0, 1.5, pgas.SIGNAL_SET, 0),
        (TypeError, "pgas.signal_op: sig must be an array of uint64, not an array of int32", pgas.signal_op, number, 0, 1, 0, 0),
        (ValueError, f"pgas.signal_op: op must be one of {CODES['op']}, not 7", pgas.signal_op, word, 0, 1, 7, 0),
        (ValueError, f"pgas.put_signal: op must be one of {CODES['op']}, not str", pgas.put_signal, number, number, word, 0, 1, "SET", 0),
        (ValueError, f"pgas.put_signal: value {UINT64} -1", pgas.put_signal, number, number, word, 0, -1, pgas.SIGNAL_SET, 0),
        (ValueError, f"pgas.wait_until: value {INT32} 4294967296", pgas.wait_until, number, 0, pgas.NE, 1 << 32),
        (TypeError, "pgas.wait_until: value must be an integer, not NoneType", pgas.wait_until, number, 0, pgas.EQ, None),
        (ValueError, f"pgas.wait_until: cmp must be one of {CODES['cmp']}, not 9", pgas.wait_until, number, 0, 9, 0),
        (ValueError, f"pgas.signal_wait_until: cmp must be one of {CODES['cmp']}, not -1", pgas.signal_wait_until, word, 0, -1, 0),
    ]
    for error, text, call, *arguments in cases:
        with pytest.raises(error) as refused:
            call(*arguments)
        assert str(refused.value) == text
    for array in (number, narrow, word):
        assert not array.copy_to_host().any()


def test_collectives_refused_on_the_host(heap):
    """At the call, before a kernel is launched; the team is as good as before."""
    n, world = pgas.n_pes(), pgas.TEAM_WORLD
    large, small, counts = heap.zeros(4 * n, np.int32), heap.zeros(3, np.int32), heap.zeros(n, np.int64)
    lengths, channels = f"for a team of {n}", f"channel must be 0 to {world.channels - 1} (channels= of the team, or PGAS_CHANNELS), not"
    cases = [
        (TypeError, "reduce: team is None: this PE is not a member of the team and must not make this call", None, large, large, pgas.SUM),
        (TypeError, "reduce: team must be a pgas.Team, not 'all'", "all", large, large, pgas.SUM),
        (ValueError, "reduce: op must be pgas.SUM, PROD, MIN, MAX, AND, OR or XOR, not 'sum'", world, large, large, "sum"),
        (ValueError, f"reduce: dest has 3 elements, {4 * n} are needed {lengths}", world, small, large, pgas.SUM),
        (ValueError, f"reduce: {channels} {world.channels}", world, large, large, pgas.SUM, world.channels),
        (ValueError, f"reduce: {channels} 1.0", world, large, large, pgas.SUM, 1.0),
        (ValueError, f"exscan: dest has 3 elements, {4 * n} are needed {lengths}", world, small, large, pgas.SUM),
        (ValueError, f"reducescatter: source has 3 elements, {4 * n * n} are needed {lengths}", world, large, small, pgas.SUM),
        (ValueError, f"fcollect: dest has 3 elements, {4 * n * n} are needed {lengths}", world, small, large),
        (ValueError, f"broadcast: root must be 0 to {n - 1}, not {n}", world, large, large, n),
        (ValueError, f"broadcast: dest has 3 elements, {4 * n} are needed {lengths}", world, small, large, 0),
    ]
    if n > 1:
        uneven, rows = 2 * n - 1, (counts, counts[1:], large, counts, counts)
        cases += [
            (ValueError, f"alltoallv: dest_displs has {n - 1} elements, {n} are needed {lengths}", world, large, *rows),
            (
                ValueError,
                f"alltoall: source has {uneven} elements, which is not a multiple of the team size, {n}",
                world,
                large,
                large[:uneven],
            ),
            (ValueError, "alltoall: dest must not be source", world, large, large),
        ]
    for error, text, *arguments in cases:
        with pytest.raises(error) as refused:
            getattr(pgas, text.split(":")[0])(*arguments)
        assert str(refused.value) == f"pgas.{text}"
    pgas.barrier(world)


def test_overlapping_operands_refused_on_the_host(heap):
    """What a collective writes would be read as source. Only the elements that a call uses count, and those that it may share do not."""
    n, me, world = pgas.n_pes(), pgas.my_pe(), pgas.TEAM_WORLD
    array = heap.array(np.arange(8 * n, dtype=np.int32))
    itself, own = "dest must be source itself", "must be this member's own part of"
    cases = [
        (f"reduce: dest and source overlap, but {itself}, or separate from it", array[1:5], array[:4], pgas.SUM),
        (f"inscan: dest and source overlap, but {itself}, or separate from it", array[:4], array[3:7], pgas.SUM),
        (f"broadcast: dest and source overlap, but {itself}, or separate from it", array[1:5], array[:4], 0),
        (f"fcollect: dest and source overlap, but source {own} dest, or separate from it", array[1:], array[:2]),
        (f"reducescatter: dest and source overlap, but dest {own} source, or separate from it", array[1:3], array[: 2 * n], pgas.SUM),
        ("alltoall: dest and source overlap, but dest must be separate from source", array[1:], array[:n]),
    ]  # fmt: skip
    for text, *arguments in cases:
        with pytest.raises(ValueError, match=f"^pgas.{text}; use another array$"):
            getattr(pgas, text.split(":")[0])(world, *arguments)
    assert array.copy_to_host().tolist() == list(range(8 * n))
    pgas.barrier(world)
    pgas.fcollect(world, array[: 2 * n], array[2 * me : 2 * me + 2])
    pgas.reduce(world, array, array[:4], pgas.MAX)
    pgas.reduce(world, array, array[4:8], pgas.MAX)
    pgas.reducescatter(world, array[4 + 2 * me : 6 + 2 * me], array[4 : 4 + 2 * n], pgas.MAX)
    assert array.copy_to_host()[:4].tolist() == [4, 5, 6, 7]


def test_refused_by_full_and_array(heap):
    with pytest.raises(ValueError, match=r"^pgas\.full: value must be from -128 to 127, the range of int8, not 300$"):
        heap.full(3, 300, np.int8)
    with pytest.raises(TypeError, match=r"^pgas\.full: value is of type str, which an element of type float32 cannot hold$"):
        heap.full(3, "x", np.float32)
    assert (heap.full(3, -1.9, np.int8).copy_to_host() == -1).all()
    assert np.isposinf(heap.full(3, 1e300, np.float32).copy_to_host()).all()
    with pytest.raises(ValueError, match=r"^pgas\.array: values must be numbers that elements of type int8 can hold: .*300"):
        pgas.array([300, 1], np.int8)


@pgas.jit
def store(narrow, number, word, large, fraction):
    pgas.p(narrow, 0, large, pgas.my_pe())
    pgas.p(number, 0, large, pgas.my_pe())
    pgas.p(number, 1, fraction, pgas.my_pe())
    pgas.atomic_add(number, 2, large, pgas.my_pe())
    pgas.signal_op(word, 0, -1, pgas.SIGNAL_SET, pgas.my_pe())


def test_converted_in_kernels(heap):
    """Integers modulo 2^bits, floats toward zero."""
    narrow, number, word = heap.zeros(4, np.int8), heap.zeros(4, np.int32), heap.zeros(4, np.uint64)
    store[1, 1](narrow, number, word, (1 << 32) + 300, -1.9)
    pgas.barrier_all()
    assert narrow.copy_to_host()[0] == 44
    assert number.copy_to_host().tolist() == [300, -1, 300, 0]
    assert word.copy_to_host()[0] == 2**64 - 1


@pgas.jit
def store_float(number, fraction):
    pgas.p(number, 0, fraction, pgas.my_pe())


@pytest.mark.skipif(not pgas.SIMULATOR or THROUGH_NIC, reason="undefined on GPUs; in the midst of a queue it ends the job")
@pytest.mark.parametrize("value", [math.nan, math.inf, 2.0**31, -(2.0**31) - 1])
def test_a_float_beyond_an_integer_is_refused_by_the_simulator(heap, value):
    number = heap.zeros(4, np.int32)
    with pytest.raises(OverflowError, match=r"beyond the integers that an element of type int32 can hold, -2147483648 to 2147483647$"):
        store_float[1, 1](number, value)
    store_float[1, 1](number, -(2.0**31) - 0.5)
    assert number.copy_to_host()[0] == -(2**31)


@pgas.jit
def compute(words, numbers, out, signed, seed):
    """What a call returns has the element's type: 64 bits wrap, and comparisons are of its sign."""
    me = pgas.my_pe()
    x = pgas.g(words, 0, me)
    for _ in range(10):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    out[0] = x
    out[1] = pgas.atomic_fetch_add(words, 0, 1, me) + seed
    out[2] = pgas.atomic_swap(words, 1, np.uint64(5), me) * np.uint64(3)
    out[3] = pgas.signal_fetch(words, 2) * pgas.signal_wait_until(words, 2, pgas.NE, 0)
    out[4] = pgas.atomic_compare_swap(words, 3, 0, 1, me) // np.uint64(3)
    signed[0] = pgas.g(numbers, 0, me) * pgas.atomic_fetch(numbers, 0, me)
    signed[1] = pgas.g(numbers, 1, me) - 1 < 0
    signed[2] = pgas.g(words, 2, me) > -1
    shared, local = cuda.shared.array(1, np.uint64), cuda.local.array(1, np.uint32)
    shared[0], local[0] = pgas.g(words, 2, me), seed
    out[5] = shared[0] * shared[0] ^ np.uint64(local[0])
    out[6] = (x >> 40) * (me - me - 1)


def test_results_in_kernels_have_types(heap):
    large, seed = 2**64 - 59, (1 << 63) - 1
    words, numbers = heap.array([large] * 4, np.uint64), heap.array([-(2**31) + 3, -(2**31)], np.int32)
    out, signed = heap.zeros(7, np.uint64), heap.zeros(3, np.int64)
    compute[1, 1](words, numbers, out, signed, seed)
    x, mask = large, 2**64 - 1
    for _ in range(10):
        x ^= x << 13 & mask
        x ^= x >> 7
        x ^= x << 17 & mask
    found = [int(value) for value in out.copy_to_host()]
    squares = large * large & mask ^ seed & 2**32 - 1
    assert found == [x, large + seed & mask, large * 3 & mask, large * large & mask, large // 3, squares, -(x >> 40) & mask]
    assert signed.copy_to_host().tolist() == [(3 - 2**31) ** 2, 1, 1]
    pgas.barrier_all()
