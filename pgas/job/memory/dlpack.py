"""DLPack capsules of arrays, in version 0 of the protocol (torch.from_dlpack, cupy.from_dlpack, numpy.from_dlpack in the simulator).

A capsule holds a DLManagedTensor (dlpack.h, 0.8; the codes of float8 are those of 1.1). Its reader renames the capsule, and calls the
deleter when it is done. That may be while Python raises an error, or ends, when no code of Python can run; so the deleter is C's free().
"""

import ctypes
from typing import Any

import numpy as np

#: DLDeviceType.
CPU, CUDA = 1, 2

#: DLDataTypeCode by NumPy's kind, and by the names of ml_dtypes' types, which NumPy lacks.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {
    "bfloat16": 4, "float8_e3m4": 7, "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11,
    "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14,
}  # fmt: skip

_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_libc = ctypes.CDLL(None)
_allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("malloc", _libc))
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def capsule(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, device: tuple[int, int]) -> Any:
    """Return a capsule of memory, which must exist until its reader is done. A capsule that nobody reads leaves some 100 bytes behind.

    Args:
        strides: strides in bytes.
        device: DLDeviceType and number of the device.

    Raises:
        BufferError: if DLPack has no such elements, or a stride is not a multiple of the element's size.
        MemoryError: if there is no memory.
    """
    code = _NAMED.get(dtype.name, _CODES.get(dtype.kind))
    if code is None:
        raise BufferError(f"DLPack has no elements of type {dtype}")
    if any(stride % dtype.itemsize for stride in strides):
        raise BufferError(f"DLPack has no strides of {strides} bytes between elements of {dtype.itemsize}")
    ndim, axes = len(shape), ctypes.c_int64 * len(shape)
    size, width = ctypes.sizeof(_ManagedTensor), ctypes.sizeof(axes)
    at = _allocate(size + 2 * width)
    if not at:
        raise MemoryError
    axes.from_address(at + size)[:] = list(shape)
    axes.from_address(at + size + width)[:] = [stride // dtype.itemsize for stride in strides]
    managed = _ManagedTensor.from_address(at)
    managed.tensor = _Tensor(address, *device, ndim, code, 8 * dtype.itemsize, 1, at + size, at + size + width, 0)
    managed.context, managed.deleter = None, _FREE
    return _new(at, _NAME, None)
