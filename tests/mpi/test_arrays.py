"""Symmetric arrays as Python objects: copying, pickling, printing, freeing, and the _like functions."""

import copy
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest

import pgas
from mpi.checks import N
from pgas.job.memory.array import block_of

NO_COPY = r"^a symmetric array cannot be copied or pickled, because it refers to this PE's memory; use array\.copy_to_host\(\) instead$"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copy_and_pickle_are_refused(heap, how):
    array = heap.zeros((3, 4))
    for thing in (array, array[1:]):
        with pytest.raises(TypeError, match=NO_COPY):
            how(thing)


class Unreadable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self):
        return int, ("seven",)


def test_objects_that_cannot_be_sent(heap):
    """If one PE passes one, every PE gets an error of the documented class, and the next call works."""
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


def test_a_freed_array_can_be_printed(heap):
    array = pgas.zeros(3, np.int16)
    view, line = array[1:], repr(array)
    assert line == "SymmetricArray(array([0, 0, 0], dtype=int16))"
    pgas.free(array)
    for thing in (array, view):
        assert repr(thing).startswith("SymmetricArray(freed: int16 array of shape (3,) allocated at ")
        assert str(thing) == f"{thing}" == repr(thing)


def test_views_are_symmetric(heap):
    array = heap.array(np.arange(6).reshape(2, 1, 3))
    for view in (array.squeeze(), array.reshape(3, 2), array.ravel(), array.T, array.view(np.uint8), array.bind(), array[1:]):
        assert isinstance(view, pgas.SymmetricArray)
    assert array.squeeze().copy_to_host().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_views_made_again(heap):
    """An array may keep its views: a repeated subscript has the same elements, the stream of its array, and notices that it was freed."""
    array = pgas.array(np.arange(24).reshape(4, 6))
    host = array.copy_to_host()
    for _ in range(2):
        for idx in (
            slice(1, 3),
            slice(3),
            slice(None, None, 2),
            2,
            -1,
            (1, slice(2, 5)),
            (slice(None), 0),
            slice(2, 2),
            slice(1, None, None),
        ):
            view = array[idx]
            assert isinstance(view, pgas.SymmetricArray)
            assert (view.shape, view.strides) == (host[idx].shape, host[idx].strides)
            if view.is_c_contiguous():
                assert np.array_equal(view.copy_to_host(), host[idx])
        assert array[1, 2] == host[1, 2]
        array[1, 2] = 70 + array[1, 2]
        host = array.copy_to_host()
    if not pgas.SIMULATOR:  # where a call that repeats a slice is bound
        kept = array[1:3]
        assert array[1:3] is kept
        for column in range(6):
            for end in range(column, 20):  # more views than an array keeps
                assert np.array_equal(array[2, column:end].copy_to_host(), host[2, column:end])
        assert np.array_equal(kept.copy_to_host(), array[1:3].copy_to_host())
    other = array.bind(stream := pgas.cuda.stream())
    assert other[1:3].stream is stream
    assert array[1:3].stream is not stream
    for wrong in (1.0, slice(1.0, 3.0), slice(True, "3"), "name", (0, 1, 2), 4):
        with pytest.raises((TypeError, IndexError, ValueError)):
            array[wrong]
    pgas.barrier_all()
    pgas.free(array)
    for idx in (slice(1, 3), 2, slice(7, 8)):
        with pytest.raises(pgas.HeapError, match="use after free"):
            array[idx]


def test_views_that_would_be_copies_are_refused(heap):
    """reshape() and ravel() return views or raise. NumPy would return a copy, which is not on the heap."""
    array = heap.array(np.arange(6).reshape(2, 3))
    for view, shape in ((array.transpose(), (6,)), (array[:, 1:], (4,)), (array[:, ::2], (4, 1))):
        for call, made in (("reshape()", lambda view=view, shape=shape: view.reshape(*shape)), ("ravel()", view.ravel)):
            with pytest.raises(TypeError) as refused:
                made()
            assert str(refused.value) == (
                f"{call} of an array of shape {tuple(view.shape)} and strides {tuple(view.strides)} needs a copy, which would not be on "
                f"the symmetric heap; use copy_to_host().{call}"
            )
    with pytest.raises(ValueError, match="cannot reshape array of size 6"):
        array.reshape(5)
    array.transpose().ravel("F")[:2] = -1
    array[:, 1:].reshape((2, 2, 1))[1] = 7
    array[0][::2].ravel()[1:] = 9
    assert array.copy_to_host().tolist() == [[-1, -1, 9], [3, 7, 7]]


def test_truth_of_one_element_only(heap):
    """Like NumPy's arrays. Python would take the length instead."""
    assert heap.full((1, 1), 2.0)
    assert heap.array(np.arange(3))[1:2]
    assert not heap.zeros(1, np.int32)
    for shape, what in ((3, "array with more than one element"), ((1, 2), "array with more than one element"), (0, "empty array")):
        array = heap.zeros(shape)
        with pytest.raises(ValueError, match=f"the truth value of an .*{what}"):
            bool(array)


def test_a_view_of_the_whole_array_frees_it():
    array = pgas.zeros((2, 3))
    for part in (array[:1], array[:, 1:], array.reshape(6), array.view(np.int64), array.transpose()):
        with pytest.raises(ValueError, match="array is a view of the float64 array"):
            pgas.free(part)
    pgas.free(array[:])
    with pytest.raises(pgas.HeapError, match="already freed"):
        pgas.free(array)


@pytest.mark.parametrize("axes", [(), (None,), (1, 0, 2), ((1, 0, 2),), ([2, 0, 1],), (0, -1, 1)])
def test_transpose_takes_axes_like_numpy(heap, axes):
    host = np.arange(24).reshape(2, 3, 4)
    view = heap.array(host).transpose(*axes)
    expected = host.transpose(*axes)
    assert (view.shape, view.strides) == (expected.shape, expected.strides)
    assert view.reshape(expected.shape)[0, 1, 0] == expected[0, 1, 0]
    for wrong in ((1, 0), (0, 0, 1), (0, 1, 3)):
        with pytest.raises(ValueError, match=r"axes|axis"):
            view.transpose(*wrong)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2), (0, 0)])
def test_copies_of_no_elements(heap, shape):
    """NumPy's strides of such an array are 0. Shape and dtype still have to fit."""
    host = np.ones(shape, np.int16)
    array, ordinary = heap.array(host), pgas.cuda.to_device(host)
    for copied in (array, ordinary, heap.full(shape, 2, np.int16), heap.zeros((4, *shape), np.int16)[1]):
        copied.copy_to_device(host)
        copied.copy_to_device(host.copy("F"))
        copied.copy_to_device(array)
        assert copied.copy_to_host(np.empty_like(host)).shape == copied.copy_to_host().shape == shape
        with pytest.raises(TypeError, match="incompatible dtype"):
            copied.copy_to_host(np.ones(shape, np.int32))
        if pgas.SIMULATOR or copied is not ordinary:  # on a GPU, Numba's own arrays take any array without elements
            with pytest.raises(ValueError, match="shape"):
                copied.copy_to_device(np.ones((*shape, 2), np.int16))
            with pytest.raises(TypeError, match="dtype"):
                copied.copy_to_device(np.ones(shape, np.int32))


def test_sources_that_do_not_fit(heap):
    array = heap.zeros((2, 3), np.float32)
    for source, error, said in (
        (np.ones((2, 3)), TypeError, "the source has dtype float64, the array float32; convert it with astype()"),
        (heap.zeros((2, 3)), TypeError, "the source has dtype float64, the array float32; convert it with astype()"),
        (np.ones((3, 2), np.float32), ValueError, "the source has shape (3, 2), the array (2, 3)"),
        ([[1, 2, 3]] * 2, TypeError, "the source must be an array of NumPy or Numba, not list; see numpy.asarray()"),
        (1.0, TypeError, "the source must be an array of NumPy or Numba, not float; see numpy.asarray()"),
    ):
        with pytest.raises(error, match=f"^copy_to_device: {re.escape(said)}$"):
            array.copy_to_device(source)


@pytest.mark.parametrize("shape", [(4, 0), (4, 0, 0), (4, 0, 5), (4, 3, 0, 2), (0, 3)])
def test_subscripts_of_no_elements(heap, shape):
    """They have NumPy's shapes, also in views of views, and assignments write nothing."""
    array, host, after = heap.zeros(shape, np.int16), np.zeros(shape, np.int16), heap.zeros(8, np.int16)
    for items in ((slice(1, 3),), (slice(None), slice(None)), (slice(None), slice(0, 1)), (slice(2, 3), slice(None, None, 2))):
        view, expected = array[items], host[items]
        assert isinstance(view, pgas.SymmetricArray)
        assert block_of(view) is block_of(array)
        assert (view.shape, view[:].shape, view[::2].shape) == (expected.shape, expected[:].shape, expected[::2].shape)
        array[items] = 7
        array[items] = expected
        with pytest.raises(ValueError, match="broadcast"):
            array[items] = np.ones((*expected.shape, 2), np.int16)
    assert block_of(after[3:3]) is block_of(after)
    with pytest.raises(IndexError):
        array[shape[0]]
    with pytest.raises(IndexError):
        array[shape[0]] = 1
    assert not after.copy_to_host().any()


def test_copies_from_no_elements(heap):
    """They would leave the array as it was, without an error."""
    array = heap.full(3, 2, np.int16)
    with pytest.raises(ValueError, match=r"the source has shape \(0,\), the array \(3,\)"):
        array.copy_to_device(np.ones(0, np.int16))
    with pytest.raises(ValueError, match="the source has shape"):
        array.copy_to_device(heap.zeros(0, np.int16))


def test_copies_to_and_from_arrays_with_gaps(heap):
    """The host's values can be assigned to them."""
    array, whole = heap.full((3, 4), 2, np.int16), heap.zeros(3, np.int16)
    for copy_to in (lambda: array[:, 1].copy_to_device(np.arange(3, dtype=np.int16)), lambda: whole.copy_to_device(array[:, 1])):
        with pytest.raises(ValueError, match=r"^copy_to_device: an array of shape \(3,\) and strides \(8,\) is not contiguous; assign"):
            copy_to()
    array[:, 1][:] = np.arange(3, dtype=np.int16)
    assert array.copy_to_host().tolist() == [[2, i, 2, 2] for i in range(3)]


def test_gets_into_arrays_that_another_library_protects(heap):
    array = heap.zeros(4)
    interface = array.__cuda_array_interface__
    protected = SimpleNamespace(__cuda_array_interface__=interface | {"data": (interface["data"][0], True)})
    for get in (lambda: pgas.get(protected, array, 0), lambda: pgas.iget(protected, array, 1, 1, 0)):
        with pytest.raises(ValueError, match=r"^pgas\.i?get: dest must be writable, but is read-only$"):
            get()
    pgas.put(array, protected, pgas.my_pe())
    pgas.barrier_all()


@pytest.mark.skipif(not pgas.SIMULATOR, reason="a GPU's arrays take integers and slices only")
def test_subscripts_that_copy(heap):
    """The copy is a plain NumPy array, not a symmetric one. In kernels, too."""
    array, out = heap.array(np.arange(6).reshape(2, 3)), heap.zeros(4, int)
    for idx in ([1, 0], array.copy_to_host() > 2, (slice(None), [0, 2])):
        assert type(array[idx]) is np.ndarray
        assert array[idx].tolist() == array.copy_to_host()[idx].tolist()
    assert isinstance(array[None, ..., 1:], pgas.SymmetricArray)
    assert isinstance(array[:0], pgas.SymmetricArray)
    chosen[1, 1](array, out)
    assert out.copy_to_host().tolist() == [0, 2, 3, 5]


@pgas.jit
def chosen(array, out):
    out[:] = array[:, [0, 2]].reshape(4)


def test_a_with_block_frees(heap):
    with pgas.full(3, 2.0) as outer, pgas.zeros(2) as inner:
        assert outer.copy_to_host().tolist() == [2, 2, 2]
        pgas.free(inner)
    for array in (outer, inner):
        with pytest.raises(pgas.HeapError, match="use after free"):
            array.copy_to_host()
    array, entered = heap.zeros(3), []
    with pytest.raises(ValueError, match="array is a view of the float64 array of shape"), array[1:]:
        entered.append(1)
    assert not entered


def test_a_with_block_that_an_exception_leaves(heap):
    """The array is not freed: that would be a collective call, which the other PEs may not make."""
    with pytest.raises(KeyError), pgas.full(3, 2.0) as array:
        raise KeyError
    pgas.barrier_all()
    assert array.copy_to_host().tolist() == [2, 2, 2]
    pgas.free(array)


class TorchDtype:
    """A dtype of PyTorch: not one of NumPy's, but it prints as torch.NAME, with NumPy's name."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


def test_arrays_like_others(heap):
    plain = np.full((2, 3), 7, np.int16)
    tensor = SimpleNamespace(shape=[2, 3], dtype=TorchDtype("int16"))
    for prototype in (plain, plain.T[::-1].T, heap.array(plain), heap.array(np.zeros((5, 3), np.int16))[1:3], tensor):
        for made, value in (
            (pgas.zeros_like(prototype), 0),
            (pgas.full_like(prototype, 5), 5),
            (pgas.ones(prototype.shape, prototype.dtype), 1),
            (pgas.empty_like(prototype), None),
        ):
            with made:
                assert isinstance(made, pgas.SymmetricArray)
                assert (made.shape, made.dtype, made.is_c_contiguous()) == ((2, 3), np.int16, True)
                assert value is None or (made.copy_to_host() == value).all()
    with pgas.full_like(plain, 1.5, np.float32, shape=4) as other, pgas.zeros_like(np.float64(3), alignment=4096) as scalar:
        assert (other.shape, other.dtype, other.copy_to_host().tolist()) == ((4,), np.float32, [1.5] * 4)
        assert (scalar.shape, scalar.dtype, scalar.__cuda_array_interface__["data"][0] % 4096) == ((), np.float64, 0)


@pytest.mark.parametrize("name", ["empty_like", "zeros_like", "full_like"])
def test_prototypes_without_shape_or_dtype(name):
    for prototype in ([1, 2], None, SimpleNamespace(shape=3)):
        words = rf"^pgas\.{name}: prototype must have a shape and a dtype, like arrays, not {type(prototype).__name__}$"
        with pytest.raises(TypeError, match=words):
            getattr(pgas, name)(prototype, *[0] * (name == "full_like"))


def test_dtypes_by_name(heap):
    for dtype, name in (("float16", "float16"), ("bfloat16", "bfloat16"), (TorchDtype("bfloat16"), "bfloat16"), (np.int32, "int32")):
        array = heap.full(3, 2, dtype)
        assert array.dtype == np.dtype(name)
        assert array.copy_to_host().astype(float).tolist() == [2, 2, 2]
    some = heap.array([1, 2.5], "bfloat16")
    assert some.copy_to_host().astype(float).tolist() == [1, 2.5]
    assert (np.asarray(some).dtype, np.asarray(some).astype(float).tolist()) == ("bfloat16", [1, 2.5])
    for dtype in ("bfloat17", 3, TorchDtype("qint8")):
        expected = r"^pgas\.zeros: dtype must be a NumPy dtype or .*, such as bfloat16, not (bfloat17|3|torch\.qint8)$"
        with pytest.raises(TypeError, match=expected):
            pgas.zeros(3, dtype)


def test_dtypes_that_kernels_lack(heap):
    """They are refused at once: no function in a kernel could take such an array."""
    words = " cannot be allocated on the symmetric heap, because Numba has no type for such elements (the byte order must be native; "
    records, of_bfloat16 = [("i", np.int32), ("of", [("f", ">f4", 2)])], np.dtype([("b", "bfloat16")])
    for dtype in (">i4", np.longdouble, np.clongdouble, "V8", "float4_e2m1fn", np.dtype(records), of_bfloat16):
        with pytest.raises(TypeError) as refused:
            pgas.zeros(3, dtype)
        assert str(refused.value).startswith(f"pgas.zeros: arrays of {np.dtype(dtype)}{words}")
    with pytest.raises(TypeError, match=r"^pgas.array: arrays of >f8 cannot be allocated"):
        pgas.array(np.ones(3, ">f8"))
    for dtype in ("<i4", "datetime64[s]", [("i", "i1"), ("f", "f8", 2), ("name", "S4")]):
        assert heap.zeros(3, dtype).dtype == np.dtype(dtype)


def test_in_place_operators_change_this_pes_instance(heap):
    array = heap.array(np.arange(6, dtype=np.int32).reshape(2, 3))
    same, other, wanted = array, heap.full((2, 3), 3, np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)
    array += 1
    array *= other
    array[:, 1] -= 7
    array //= np.int32(2)
    array ^= np.arange(3)
    array[0, 0] += 5
    wanted = (wanted + 1) * 3
    wanted[:, 1] -= 7
    wanted = wanted // 2 ^ np.arange(3)
    wanted[0, 0] += 5
    assert array is same
    assert array.copy_to_host().tolist() == wanted.tolist()
    with pytest.raises(TypeError, match="Cannot cast"):
        array += 0.5
    assert array.copy_to_host().tolist() == wanted.tolist()
    pgas.barrier_all()
