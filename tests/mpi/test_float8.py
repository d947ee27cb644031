"""Arrays of float8 elements on the host: allocation, operations at once and on a stream, NumPy, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import pgas
from mpi.checks import equal
from mpi.test_arrays import TorchDtype
from pgas.native.dtypes import FLOAT8

NAMES = [dtype.name for dtype in FLOAT8]


@pytest.mark.parametrize("name", NAMES)
def test_arrays(heap, name):
    ones = heap.full(3, 1, name)
    for array in (ones, heap.full(3, 1, TorchDtype(name)), heap.array([1, 1, 1], getattr(ml_dtypes, name))):
        assert array.dtype == np.dtype(name)
        assert array.copy_to_host().astype(float).tolist() == [1, 1, 1]
        assert (np.asarray(array).dtype, np.asarray(array).tolist()) == (name, [1, 1, 1])
    ones[1] = 2
    ones[2:] = np.full(1, 4, name)
    ones *= 2
    assert [float(number) for number in (ones[0], ones[1], ones[2])] == [2, 4, 8]
    assert f"dtype={name!r}" in repr(ones)
    with pgas.ones(2, name) as array:
        assert array.copy_to_host().astype(float).tolist() == [1, 1]
    assert ones.view(np.uint8).copy_to_host().tolist() == ones.copy_to_host().view(np.uint8).tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on_stream", [False, True])
def test_operations_of_the_host(heap, me, n, right, left, name, on_stream):
    sent = [(np.arange(2 * n) * 91 + pe * 5 + 125).astype(np.uint8) for pe in range(n)]
    stream = {"stream": cuda.stream()} if on_stream else {}
    dest, source, sig = heap.zeros((6, 2 * n), name), heap.array(sent[me].view(name), name), heap.zeros(1, np.uint64)
    gathered, collected = heap.zeros(2 * n * n, name), heap.zeros(2 * n * n, name)
    counts, displs = heap.full(n, 1, np.int64), heap.array(np.arange(n))
    pgas.put(dest[0], source, right, **stream)
    pgas.get(dest[1], source, right, **stream)
    pgas.iput(dest[2], source, 2, 2, right, **stream)
    pgas.put_signal(dest[3], source, sig, 0, 1, pgas.SIGNAL_SET, right, **stream)
    pgas.alltoall(pgas.TEAM_WORLD, dest[4], source, **stream)
    pgas.alltoallv(pgas.TEAM_WORLD, dest[5], counts, displs, source, counts, displs, **stream)
    pgas.fcollect(pgas.TEAM_WORLD, gathered, source, **stream)
    pgas.collect(pgas.TEAM_WORLD, collected, source, **stream)
    pgas.barrier_all(**stream)
    expected = np.zeros((6, 2 * n), np.uint8)
    expected[[0, 3]], expected[1], expected[2, ::2] = sent[left], sent[right], sent[left][::2]
    expected[4] = np.concatenate([sent[pe][2 * me : 2 * me + 2] for pe in range(n)])
    expected[5, :n] = [sent[pe][me] for pe in range(n)]
    equal(dest, expected.view(name))
    equal(gathered, np.concatenate(sent).view(name))
    equal(collected, np.concatenate(sent).view(name))
    pgas.broadcast(pgas.TEAM_WORLD, dest[0], source, n - 1, **stream)
    pgas.barrier_all(**stream)
    pgas.p(dest, (1, 0), 2, right, **stream)
    pgas.p(dest, (1, 1), np.dtype(name).type(0.5), right, **stream)
    pgas.barrier_all(**stream)
    assert [float(pgas.g(dest, (1, i), right, **stream)) for i in (0, 1)] == [2, 0.5]
    assert pgas.g(dest, (0, 0), right, **stream).tobytes() == sent[n - 1][:1].tobytes()


def test_refused_on_the_host(heap):
    array, other, numbers = heap.zeros(8, "float8_e4m3fn"), heap.zeros(8, "float8_e5m2"), heap.zeros(8, np.uint8)
    world, only = pgas.TEAM_WORLD, "elements of type float8_e5m2 can be copied, but not computed with or compared"
    cases = [
        ("pgas.put: source has elements of type float8_e5m2, dest of type float8_e4m3fn; they must be the same", pgas.put, array, other, 0),
        ("pgas.fcollect: source has elements of type uint8, dest of type float8_e4m3fn", pgas.fcollect, world, array, numbers),
        ("pgas.p: value is of type complex, which an element of type float8_e4m3fn cannot hold", pgas.p, array, 0, 1j, 0),
        (f"pgas.wait_until: {only}", pgas.wait_until, other, 0, pgas.EQ, 1),
        (f"pgas.wait_until_any: {only}", pgas.wait_until_any, other, None, pgas.EQ, 1),
        (f"pgas.test_all: {only}", pgas.test_all, other, None, pgas.EQ, 1),
        (f"pgas.maxloc: {only}", pgas.maxloc, world, other, other),
        *(
            (f"pgas.{name}: {only}", getattr(pgas, name), other, 0, 1, 0)
            for name in ("atomic_add", "atomic_set", "atomic_swap", "atomic_min")
        ),
        *((f"pgas.{name}: {only}", getattr(pgas, name), world, other, other, pgas.MAX) for name in ("reduce", "reducescatter", "exscan")),
    ]
    for text, call, *args in cases:
        with pytest.raises(TypeError) as refused:
            call(*args)
        assert text in str(refused.value)
    for unknown in ("float8_e9", "float8"):
        with pytest.raises(TypeError, match="dtype must be a NumPy dtype or the name of one"):
            pgas.zeros(3, unknown)
    for record in ([("a", "float8_e5m2")], [("a", "float8_e5m2", 3)]):
        with pytest.raises(TypeError, match="cannot be allocated on the symmetric heap"):
            pgas.zeros(3, np.dtype(record))
