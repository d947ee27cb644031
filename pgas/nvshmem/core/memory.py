"""Symmetric memory as buffers of cuda.core, arrays of CuPy, and tensors of PyTorch (nvshmem4py's memory, interop, and utils).

An allocation is a symmetric array of bytes. Like nvshmem4py, host calls find it by the address of their operand, and use all of it.
"""

import importlib
from typing import Any

import numpy as np

from pgas import api
from pgas.base.parameters import is_integer
from pgas.job.memory.array import dtype_of, shape_of

if api.SIMULATOR:
    from pgas.nvshmem.core.simulated import as_array
    from pgas.sim.cuda_core import Buffer, MemoryResource
else:
    from cuda.core import Buffer, MemoryResource  # type: ignore[no-redef]

    def as_array(memory: Any) -> Any:  # type: ignore[misc]
        """Return a symmetric array as one of CuPy, if it is installed."""
        try:
            return importlib.import_module("cupy").asarray(memory)
        except ImportError:
            return memory


__all__ = [
    "NvshmemResource", "NvshmemStream", "NvshmemStreamsType", "array", "array_get_buffer", "buffer", "bytearray", "bytetensor", "free",
    "free_array", "free_tensor", "get_peer_array", "get_peer_buffer", "get_peer_tensor", "tensor", "tensor_get_buffer",
]  # fmt: skip

NvshmemResource, NvshmemStreamsType = MemoryResource, Any

#: Allocations by address, each with its views by dtype, and addresses in other PEs' memory, which is not freed here.
_allocated: dict[int, tuple[Any, dict[Any, Any]]] = {}
_of_peers: set[int] = set()

#: NVSHMEM's names of types that have other names in NumPy; sums of bool are those of bytes.
_NAMES = {
    "half": "float16", "fp16": "float16", "float": "float32", "double": "float64", "char": "int8", "schar": "int8", "short": "int16",
    "int": "int32", "long": "int64", "longlong": "int64", "ptrdiff": "int64", "uint": "uint32", "ulong": "uint64", "ulonglong": "uint64",
    "size": "uint64", "bool": "uint8",
}  # fmt: skip


class NvshmemStream:
    """A stream of PyTorch; all functions also take the stream itself."""

    def __init__(self, pt_stream: Any) -> None:
        self.pt_stream, self.handle = pt_stream, pt_stream.cuda_stream


def forget() -> None:
    """Forget all memory, after the end of the job."""
    _allocated.clear()
    _of_peers.clear()


def kind_of(dtype: Any) -> np.dtype:
    """Return the dtype that NVSHMEM uses for one of NVSHMEM, NumPy, or PyTorch, or for its name."""
    name = str(dtype) if isinstance(dtype, str) or "torch" in str(dtype) else np.dtype(dtype).name
    name = name.removeprefix("torch.").removesuffix("_t")
    return dtype_of(_NAMES.get(name, name))


def get_size(shape: Any, dtype: Any) -> int:
    """Return the bytes of an array. Here, names of dtypes are NumPy's: int has 8 bytes."""
    return int(np.prod(shape_of(tuple(shape) if hasattr(shape, "__iter__") else shape), dtype=np.int64)) * dtype_of(dtype).itemsize


def dtype_nbytes(dtype: str) -> int:
    """Return the bytes of an element of a type with this name."""
    return kind_of(dtype).itemsize


def _address(operand: Any) -> int:
    if isinstance(operand, Buffer):
        return int(operand.handle)
    if (pointer := getattr(operand, "data_ptr", None)) is not None:
        return int(pointer())
    if (pointer := getattr(getattr(operand, "data", None), "ptr", None)) is not None:  # CuPy's interface takes ten times as long.
        return int(pointer)
    return int(operand.__cuda_array_interface__["data"][0])


def _found(operand: Any) -> tuple[Any, dict[Any, Any]]:
    """Return the allocation at the address of a buffer, array, or tensor, and its views."""
    try:
        return _allocated[_address(operand)]
    except (AttributeError, KeyError):
        shown = type(operand).__name__
        raise ValueError(f"nvshmem.core: operands must be what buffer, array, or tensor returned, not another {shown}") from None


def whole(operand: Any) -> Any:
    """Return the symmetric array of bytes at the address of a buffer, array, or tensor."""
    return _found(operand)[0]


def typed(operand: Any, dtype: Any = None) -> Any:
    """Return the memory of a buffer, array, or tensor as a symmetric array of its dtype, or another one.

    It is the same array each time, because a host call that is repeated with the same arrays takes a tenth of the time.
    """
    (memory, views), dtype = _found(operand), operand.dtype if dtype is None else dtype
    if (view := views.get(dtype)) is None:
        kind = kind_of(dtype)
        view = views[dtype] = memory[: memory.size - memory.size % kind.itemsize].view(kind)
    return view


def _allocate(nbytes: int) -> Any:
    memory = api.empty(max(nbytes, 1), np.uint8)
    _allocated[_address(memory)] = memory, {}
    return memory


def _buffer(memory: Any) -> Any:
    return Buffer.from_handle(_address(memory), memory.size, owner=memory)


def _array(memory: Any, shape: Any, dtype: Any, morder: str = "C") -> Any:
    return as_array(memory[: get_size(shape, dtype)].view(dtype_of(dtype)).reshape(shape, order=morder))


def _tensor(memory: Any, shape: Any, dtype: Any, morder: str = "C") -> Any:
    flat = importlib.import_module("torch").from_dlpack(memory[: get_size(shape, dtype)]).view(dtype)
    return flat.view(shape) if morder == "C" else flat.view(*shape[::-1]).permute(*reversed(range(len(shape))))


def _peer(function: str, operand: Any, pe: Any) -> Any:
    if not is_integer(pe) or not 0 <= pe < api.n_pes():
        raise ValueError(f"nvshmem.core.{function}: the PE must be an integer from 0 to {api.n_pes() - 1}, not {pe!r}")
    memory = api.ptr(whole(operand), pe)
    if memory is None:
        raise api.PgasError(f"nvshmem.core.{function}: the memory of PE {pe} is not mapped here (python -m pgas info tells why)")
    _of_peers.add(_address(memory))
    return memory


def buffer(size: int, release: bool = False, except_on_del: bool = True) -> Any:
    """Return symmetric memory as a buffer. Collective."""
    return _buffer(_allocate(int(size)))


def array(shape: Any, dtype: Any = "float32", release: bool = False, morder: str = "C", except_on_del: bool = True) -> Any:
    """Return symmetric memory as an array of CuPy. Collective."""
    return _array(_allocate(get_size(shape, dtype)), shape, dtype, morder)


def tensor(shape: Any, dtype: Any = None, release: bool = False, morder: str = "C", except_on_del: bool = True) -> Any:
    """Return symmetric memory as a tensor of PyTorch. Collective."""
    dtype, shape = dtype or importlib.import_module("torch").float32, (shape,) if isinstance(shape, int) else shape
    return _tensor(_allocate(get_size(shape, dtype)), shape, dtype, morder)


def bytearray(shape: Any, dtype: Any = None, release: bool = False, device_id: Any = None, morder: str = "C", **unused: Any) -> Any:
    """Return an array of as many bytes as the shape has elements. Collective."""
    return array(shape, "int8", morder=morder)


def bytetensor(shape: Any, dtype: Any = None, release: bool = False, morder: str = "C", **unused: Any) -> Any:
    """Return a tensor of as many bytes as the shape has elements. Collective."""
    return tensor(shape, importlib.import_module("torch").uint8, morder=morder)


def get_peer_buffer(buffer: Any, pe: int) -> Any:
    """Return PE pe's memory as a buffer. Raises NvshmemError if it is not mapped here."""
    return _buffer(_peer("get_peer_buffer", buffer, pe))


def get_peer_array(array: Any, peer_pe: int | None = None) -> Any:
    """Return PE peer_pe's memory as an array. Raises NvshmemError if it is not mapped here."""
    return _array(_peer("get_peer_array", array, peer_pe), tuple(array.shape), array.dtype)


def get_peer_tensor(tensor: Any, peer_pe: int | None = None) -> Any:
    """Return PE peer_pe's memory as a tensor. Raises NvshmemError if it is not mapped here."""
    return _tensor(_peer("get_peer_tensor", tensor, peer_pe), tuple(tensor.shape), tensor.dtype)


def array_get_buffer(array: Any) -> tuple[Any, int, str]:
    """Return an array's buffer, size in bytes, and dtype."""
    return _buffer(whole(array)), get_size(array.shape, array.dtype), str(array.dtype)


def free_array(array: Any) -> None:
    """Free memory; that of another PE is not freed. Collective."""
    if (address := _address(array)) not in _of_peers:
        api.free(whole(array))
        del _allocated[address]


free = free_tensor = free_array
tensor_get_buffer = array_get_buffer
