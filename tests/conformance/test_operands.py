"""Wrong operands in kernels give an error on the host that says where. Each test ends its job, so these run last."""

import inspect
import os
import warnings

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import THROUGH_NIC, N, Words, checklist
from conformance.ring import once_is_enough, works_afterwards

needs_checks = pytest.mark.skipif(
    not pgas.SIMULATOR and "check" not in os.environ.get("PGAS_DEBUG", ""), reason="capability missing: PGAS_DEBUG=check on a GPU"
)


@pgas.jit
def p_anywhere(dest, idx, pe):
    pgas.p(dest, idx, 1, pe)


@pgas.jit
def g_anywhere(dest, idx, pe):
    dest[0] = pgas.g(dest, idx, pe)


@pgas.jit
def add_anywhere(dest, idx, pe):
    pgas.atomic_fetch_add(dest, idx, 1, pe)


@pgas.jit
def put_any(dest, source, nelems, pe):
    pgas.put_block(dest, source, pe, nelems)


@pgas.jit
def get_any(dest, source, nelems, pe):
    pgas.get(dest, source, pe, nelems)


@pgas.jit
def put_all(dest, source, pe):
    pgas.put(dest, source, pe)


@pgas.jit
def signal_anywhere(sig, pe):
    pgas.signal_op(sig, 1, 1, pgas.SIGNAL_ADD, pe)


@pgas.jit
def wait_anywhere(flag, idx):
    pgas.wait_until(flag, idx, pgas.EQ, 0)


def device_error(kernel, *args):
    """Return the text of the kernel's error, which finalize() raises again. All PEs make the same mistake."""

    def run():
        kernel[1, 1](*args)
        pgas.synchronize()

    with pytest.raises(pgas.DeviceError) as caught:
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(pgas.DeviceError):
            pgas.finalize()
    works_afterwards()
    return Words(caught.value)


@pgas.jit
def wait_forever(flag):
    pgas.wait_until(flag, 2, pgas.EQ, 7)


@checklist("Wait and test", "a wait past its deadline")
def test_a_wait_that_never_ends(monkeypatch):
    """The error names PE, operation, element, awaited and found value; the next job works."""
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TIMEOUT", "0.3")
        pgas.init()
        me, flag = pgas.my_pe(), pgas.full(5, -3, np.int32)
        line = inspect.currentframe().f_lineno - 1
        text = device_error(wait_forever, flag)
    assert f"PE {me}, block 0, thread 0: wait_until waited 0.3 s (PGAS_TIMEOUT)" in text
    assert f"for element [2] of the int32 array of shape (5,) allocated at {__file__}:{line} == 7, last saw -3" in text


@pgas.jit
def wait_for_all(flags, status):
    pgas.wait_until_all(flags, status, pgas.LT, -3)


@pgas.jit
def wait_for_any(flags, status):
    pgas.wait_until_any(flags, status, pgas.LT, -3)


@pgas.jit
def wait_for_some(flags, status):
    pgas.wait_until_some_vector(flags, status, status, pgas.LT, flags)


@once_is_enough
@checklist("Wait and test", "a wait past its deadline")
@pytest.mark.parametrize("kernel", [wait_for_all, wait_for_any, wait_for_some], ids=["all", "any", "some_vector"])
def test_a_wait_for_several_that_never_ends(monkeypatch, kernel):
    """The error names an element of the wait set."""
    with monkeypatch.context() as patch:
        patch.setenv("PGAS_TIMEOUT", "0.3")
        pgas.init()
        flags, status = pgas.full(5, -3, np.int16), pgas.array(np.array([1, 1, 1, 0, 1], np.int32))
        text = device_error(kernel, flags, status)
    name = {"wait_for_all": "wait_until_all", "wait_for_any": "wait_until_any", "wait_for_some": "wait_until_some_vector"}[kernel.__name__]
    which = "" if kernel is wait_for_all else "one of its wait set, such as "
    assert f"thread 0: {name} waited 0.3 s (PGAS_TIMEOUT) for {which}element [3] of the int16 array of shape (5,)" in text
    assert "< -3, last saw -3" in text


@checklist("Remote memory access", "a PE that does not exist")
@needs_checks
@pytest.mark.parametrize("pe", [N] if THROUGH_NIC else [-1, N, 1000])
@pytest.mark.parametrize("kernel", [p_anywhere, g_anywhere, add_anywhere], ids=["p", "g", "atomic_fetch_add"])
def test_a_pe_that_does_not_exist(kernel, pe):
    pgas.init()
    me = pgas.my_pe()
    text = device_error(kernel, pgas.zeros(3, np.int32), 1, pe)
    name = {"p_anywhere": "p", "g_anywhere": "g", "add_anywhere": "atomic_fetch_add"}[kernel.__name__]
    assert f"PE {me}, block 0, thread 0: {name}: PE {pe} does not exist" in text


@checklist("Remote memory access", "a PE that does not exist")
@needs_checks
@pytest.mark.parametrize(
    ("kernel", "args", "name"),
    [(put_any, (3,), "put_block"), (get_any, (3,), "get"), (put_all, (), "put")],
    ids=["put_block", "get", "put"],
)
@once_is_enough
def test_a_copy_with_a_pe_that_does_not_exist(kernel, args, name):
    pgas.init()
    dest, source = pgas.zeros(9), pgas.zeros(9)
    assert f"thread 0: {name}: PE {N} does not exist" in device_error(kernel, dest, source, *args, N)


@checklist("Remote memory access", "a PE that does not exist")
@needs_checks
@once_is_enough
def test_a_signal_to_a_pe_that_does_not_exist():
    pgas.init()
    assert f"signal_op: PE {N} does not exist" in device_error(signal_anywhere, pgas.zeros(3, np.uint64), N)


@checklist("Remote memory access", "local operands off the heap")
@needs_checks
@pytest.mark.parametrize("kernel", [p_anywhere, g_anywhere, add_anywhere], ids=["p", "g", "atomic_fetch_add"])
@once_is_enough
def test_an_element_off_the_heap(kernel):
    pgas.init()
    text = device_error(kernel, pgas.zeros(3, np.int32), 1 << 40, 0)
    assert f"idx is {1 << 40} on axis 0 of {'source' if kernel is g_anywhere else 'dest'}, which has 3 there" in text


@checklist("Remote memory access", "local operands off the heap")
@needs_checks
def test_a_destination_off_the_heap():
    pgas.init()
    text = device_error(put_all, cuda.to_device(np.zeros(4)), pgas.zeros(4), N - 1)
    assert f"put to PE {N - 1}: dest, 32 bytes at" in text
    assert "is not on the symmetric heap" in text


@checklist("Remote memory access", "local operands off the heap")
@needs_checks
@once_is_enough
def test_a_source_of_get_off_the_heap():
    pgas.init()
    text = device_error(get_any, pgas.zeros(4), cuda.to_device(np.zeros(4)), 2, 0)
    assert "get from PE 0: source, 16 bytes at" in text


@checklist("Remote memory access", "local operands off the heap")
@needs_checks
@once_is_enough
def test_a_wait_off_the_heap():
    pgas.init()
    assert "wait_until" in device_error(wait_anywhere, cuda.to_device(np.zeros(4, np.int64)), 1)


@pgas.jit
def put_to_every_second(a, m, s):
    pgas.put(a[::2], a[:4], 0, 2)


@pgas.jit
def get_of_a_plane(a, m, s):
    pgas.get_block(m[1:3, 0:2], m[1:3, 1:3], 0)


@pgas.jit
def signal_with_a_column(a, m, s):
    pgas.put_signal(a[:4], m[:, 1], s, 0, 1, pgas.SIGNAL_ADD, 0)


@pgas.jit
def wait_backwards(a, m, s):
    pgas.wait_until_all(s[::-1], None, pgas.EQ, 0)


@pgas.jit
def broadcast_of_a_column(a, m, s):
    pgas.broadcast(pgas.TEAM_WORLD, a[4:], m[:, 0], 0)


@checklist("Python", "slices with gaps are refused by name")
@pytest.mark.parametrize(
    ("kernel", "name", "operand", "axis", "apart", "wanted"),
    [
        (put_to_every_second, "put", "dest", 0, 8, 4),
        (get_of_a_plane, "get_block", "dest", 0, 16, 8),
        (signal_with_a_column, "put_signal", "source", 0, 16, 4),
        (wait_backwards, "wait_until_all", "ivars", 0, -8, 8),
        (broadcast_of_a_column, "broadcast", "source", 0, 16, 4),
        (put_all, "put", "source", 0, 8, 4),
    ],
    ids=["put", "get", "put_signal", "wait_until_all", "broadcast", "slice of the host"],
)
@once_is_enough
def test_slices_with_gaps(kernel, name, operand, axis, apart, wanted):
    """The error names operand and array. Nothing is moved."""
    pgas.init()
    me, flat, matrix, words = pgas.my_pe(), pgas.zeros(8, np.float32), pgas.zeros((4, 4), np.float32), pgas.zeros(3, np.uint64)
    args = (flat[:4], flat[::2], 0) if kernel is put_all else (flat, matrix, words)
    text = device_error(kernel, *args)
    assert f"PE {me}, block 0, thread 0: {name}: {operand} must be contiguous" in text
    assert f"its elements on axis {axis} are {apart} bytes apart instead of {wanted} (element [" in text
    assert f"allocated at {__file__}:" in text


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@needs_checks
@pytest.mark.parametrize(("kernel", "name", "way"), [(put_any, "put_block", "to"), (get_any, "get", "from")], ids=["put", "get"])
@pytest.mark.parametrize("nelems", [11, -1])
@once_is_enough
def test_more_elements_than_there_are(kernel, name, way, nelems):
    pgas.init()
    dest, source = pgas.zeros(10, np.int16), pgas.zeros(20, np.int16)
    text = device_error(kernel, dest, source, nelems, 0)
    assert f"{name} {way} PE 0: {nelems} elements wanted, but dest has 10" in text


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@needs_checks
@once_is_enough
def test_a_source_longer_than_dest():
    pgas.init()
    text = device_error(put_all, pgas.zeros(4), pgas.zeros(5), 0)
    assert "put to PE 0: 5 elements wanted, but dest has 4" in text
