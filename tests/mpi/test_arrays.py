"""Symmetric arrays as objects of Python: what copies, sends, prints and frees them."""

import copy
import pickle

import numpy as np
import pytest

import pgas
from mpi.checks import N

NO_COPY = r"^a symmetric array cannot be copied or pickled, as it is this PE's memory: copy or send array\.copy_to_host\(\)$"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_copied_nor_pickled(heap, how):
    array = heap.zeros((3, 4))
    for thing in (array, array[1:]):
        with pytest.raises(TypeError, match=NO_COPY):
            how(thing)


class Unreadable:
    """Pickles, and cannot be made again of that."""

    def __reduce__(self):
        return int, ("seven",)


def test_objects_that_cannot_be_sent(heap):
    """One PE brings one: an error on every PE, of the documented class, and the next call works."""
    me, last, array = pgas.my_pe(), N - 1, heap.zeros(3)
    for value, words in (
        (array, "pgas.allgather_object: value cannot be pickled: TypeError: a symmetric array cannot be copied or pickled"),
        (lambda: 0, "pgas.allgather_object: value cannot be pickled: "),
        (Unreadable(), f"pgas.allgather_object: the value of PE {last} cannot be unpickled: ValueError: invalid literal"),
    ):
        with pytest.raises(pgas.BootstrapError) as caught:
            pgas.allgather_object(value if me == last else me)
        assert words in str(caught.value)
        with pytest.raises(pgas.BootstrapError) as caught:
            pgas.broadcast_object(value if me == last else None, root=last)
        assert words.replace("allgather", "broadcast") in str(caught.value)
    assert pgas.allgather_object(me) == list(range(N))


def test_a_freed_array_is_printed(heap):
    array = pgas.zeros(3, np.int16)
    view, line = array[1:], repr(array)
    assert line == "SymmetricArray(array([0, 0, 0], dtype=int16))"
    pgas.free(array)
    for thing in (array, view):
        assert repr(thing).startswith("SymmetricArray(freed: int16 array of shape (3,) allocated at ")
        assert str(thing) == f"{thing}" == repr(thing)


def test_a_with_block_frees(heap):
    with pgas.full(3, 2.0) as outer, pgas.zeros(2) as inner:
        assert outer.copy_to_host().tolist() == [2, 2, 2]
        pgas.free(inner)
    for array in (outer, inner):
        with pytest.raises(pgas.HeapError, match="use after free"):
            array.copy_to_host()
    with pytest.raises(ValueError, match="a view of a symmetric array"), heap.zeros(3)[1:]:
        pass


def test_a_with_block_that_an_exception_leaves(heap):
    """No PE starts a collective call, which others would not make: the array is still there."""
    with pytest.raises(KeyError), pgas.full(3, 2.0) as array:
        raise KeyError
    pgas.barrier_all()
    assert array.copy_to_host().tolist() == [2, 2, 2]
    pgas.free(array)
