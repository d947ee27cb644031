"""Symmetric arrays through DLPack: NumPy in the simulator, PyTorch and CuPy on GPUs. They share the memory; freed arrays are refused."""

import ctypes

import numpy as np
import pytest
from numba import cuda

import pgas
from mpi.checks import PIXEL, equal, name_of, put_whole
from pgas.job.memory import dlpack

needs_numpy = pytest.mark.skipif(not pgas.SIMULATOR, reason="NumPy reads the memory of the simulator only")

get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def managed_of(capsule):
    return dlpack._ManagedTensor.from_address(get_pointer(capsule, b"dltensor"))


def tensor_of(capsule):
    return managed_of(capsule).tensor


DTYPES = [np.dtype(name) for name in ("int8", "uint16", "int32", "uint64", "float16", "float64", "complex64", "bool")]


@needs_numpy
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_numpy_shares_the_memory(heap, me, right, left, dtype):
    dest, source = heap.zeros((3, 4), dtype), heap.full((3, 4), me % 2, dtype)
    read = np.from_dlpack(dest)
    assert (read.dtype, read.shape, read.strides) == (dtype, (3, 4), dest.strides)
    put_whole[1, 32](dest, source, right)
    pgas.barrier_all()
    equal(read, np.full((3, 4), left % 2, dtype))


@needs_numpy
def test_views_and_no_elements(heap):
    array = heap.array(np.arange(24.0).reshape(4, 6))
    for view in (array[1], array[::2, 1:4], array.transpose(), array[3:3], array[::-1]):
        np.testing.assert_array_equal(np.from_dlpack(view), view.copy_to_host())


def test_bfloat16(heap):
    """NumPy has no such dtype, so the capsule is read here; PyTorch reads it in docs/gallery/pytorch.py."""
    capsule = heap.zeros((3, 4), "bfloat16").__dlpack__()
    tensor = tensor_of(capsule)
    assert (tensor.code, tensor.bits, tensor.lanes) == (4, 16, 1)  # kDLBfloat


@pytest.mark.parametrize(
    ("name", "code"),
    [("e3m4", 7), ("e4m3", 8), ("e4m3b11fnuz", 9), ("e4m3fn", 10), ("e4m3fnuz", 11), ("e5m2", 12), ("e5m2fnuz", 13), ("e8m0fnu", 14)],
)
def test_float8(heap, name, code):
    """By dlpack.h of version 1.1. A reader that does not know them takes the bits."""
    array = heap.zeros((3, 4), f"float8_{name}")
    capsule = array.__dlpack__()
    tensor = tensor_of(capsule)
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, 8, 1)
    if pgas.SIMULATOR:
        assert np.shares_memory(np.from_dlpack(array.view(np.uint8)), np.asarray(array))


@needs_numpy
def test_readers_that_end_while_an_error_is_raised(heap):
    """The error is the program's, and the reader frees what it used, without Python."""
    array = heap.zeros(10)
    assert managed_of(array.__dlpack__()).deleter == ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value
    with pytest.raises(ValueError, match="cannot reshape"):
        np.from_dlpack(array).reshape(3)
    with pytest.raises(TypeError):
        sum(np.from_dlpack(array), start="")


def test_refusals(heap):
    array, pixels, odd = heap.zeros(10, np.float32), heap.zeros(3, PIXEL), pgas.zeros(10)
    with pytest.raises(BufferError, match="no elements of type"):
        pixels.__dlpack__()
    with pytest.raises(BufferError, match="does not copy a symmetric array"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"not \(7, 0\)"):
        array.__dlpack__(dl_device=(7, 0))
    pgas.free(odd)
    with pytest.raises(pgas.HeapError, match="use after free"):
        odd.__dlpack__()


def test_device(heap):
    kind, number = heap.zeros(1).__dlpack_device__()
    assert kind == (dlpack.CPU if pgas.SIMULATOR else dlpack.CUDA)
    assert number >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_libraries_share_the_memory(heap, me, right, left, library):
    module = pytest.importorskip(library)
    dest, source = heap.zeros((3, 4), np.float32), heap.zeros((3, 4), np.float32)
    tensor, read = module.from_dlpack(source), module.from_dlpack(dest)
    tensor[:] = me + 1
    (module.cuda.synchronize if library == "torch" else module.cuda.Device().synchronize)()
    put_whole[1, 32](dest, source, right)
    pgas.barrier_all()
    found = read.cpu().numpy() if library == "torch" else read.get()
    equal(found, np.full((3, 4), left + 1, np.float32))


@pytest.mark.gpu
def test_kernels_take_tensors(heap):
    """Also from the second launch on, which goes to the driver directly if the tensor is contiguous."""
    torch = pytest.importorskip("torch")

    @pgas.jit
    def add(total, rows, row):
        i = cuda.threadIdx.x
        total[i] += rows[row, i]

    total, expected = heap.zeros(8, np.float32), np.zeros(8, np.float32)
    device = torch.from_dlpack(total).device
    for turn in range(4):
        rows = np.arange(24, dtype=np.float32).reshape(3, 8) + turn
        for tensor in (torch.as_tensor(rows, device=device), torch.as_tensor(rows.T.copy(), device=device).t()):
            add[1, 8](total, tensor, turn % 3)
            expected += rows[turn % 3]
        pgas.synchronize()
    equal(total, expected)
