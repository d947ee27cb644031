"""DLPack capsules of arrays, in version 0 of the protocol (torch.from_dlpack, cupy.from_dlpack, numpy.from_dlpack in the simulator).

A capsule holds a DLManagedTensor (dlpack.h, 0.8; the codes of float8 are those of 1.1). Its reader renames the capsule, and calls the
deleter when it is done.
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


#: Objects that readers still use, by address of the managed tensor.
_lent: dict[int, tuple[Any, ...]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(tensor: int) -> None:
    _lent.pop(tensor, None)


_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop(unused: int) -> None:
    """Free the memory of a capsule that still has its name, because such a capsule has no reader."""
    if _valid(unused, _NAME):
        _lent.pop(_pointer(unused, _NAME), None)


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def capsule(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, device: tuple[int, int], owner: Any) -> Any:
    """Return a capsule of memory; it keeps owner alive until its reader is done.

    Args:
        strides: strides in bytes.
        device: DLDeviceType and number of the device.

    Raises:
        BufferError: if DLPack has no such elements, or a stride is not a multiple of the element's size.
    """
    code = _NAMED.get(dtype.name, _CODES.get(dtype.kind))
    if code is None:
        raise BufferError(f"DLPack has no elements of type {dtype}")
    if any(stride % dtype.itemsize for stride in strides):
        raise BufferError(f"DLPack has no strides of {strides} bytes between elements of {dtype.itemsize}")
    axes = ctypes.c_int64 * max(len(shape), 1)
    extents, steps = axes(*shape), axes(*(stride // dtype.itemsize for stride in strides))
    managed = _ManagedTensor()
    managed.tensor = _Tensor(
        address, *device, len(shape), code, 8 * dtype.itemsize, 1, ctypes.addressof(extents), ctypes.addressof(steps), 0
    )
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    _lent[ctypes.addressof(managed)] = managed, extents, steps, owner
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_drop, ctypes.c_void_p))
