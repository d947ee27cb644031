"""The name `cuda` in kernels: the functions and variables that exist on the device only."""

import sys
from typing import Any

import numba.cuda
import numpy as np
from numba.core import types as core_types
from numba.cuda import types as cuda_types
from numba.cuda.np import numpy_support as cuda_numpy
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.vector_types import vector_types
from numba.np import numpy_support as core_numpy

from pgas.base.model import SHARED_PER_BLOCK
from pgas.native.dtypes import FLOAT8
from pgas.sim import activity, engine, mem
from pgas.sim.arrays import ATOMIC_READS, LocalArray, SharedArray, count_read, ndarray_of, store
from pgas.sim.engine import FULL_MASK, WARP_SIZE
from pgas.sim.float8 import only_copied
from pgas.sim.integers import CLASSES, Integer, element, int64, wrapped
from pgas.sim.kernel_code import STAND_INS, value_of

# Byte of uninitialized memory: a value that is unlikely in a program.
_GARBAGE = 0xA5

# Loads and stores with cache hints, which have no meaning here.
CACHE_HINTS = ("ldca", "ldcg", "ldcs", "ldlu", "ldcv", "stcg", "stcs", "stwb", "stwt")

_ATOMICS = ("add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin", "compare_and_swap", "cas")

_Dim3 = kernelapi.Dim3
_uint32, _uint64, _int32 = CLASSES[np.uint32], CLASSES[np.uint64], CLASSES[np.int32]


def _allocate(shape: Any, dtype: Any, alignment: int | None) -> np.ndarray[Any, Any]:
    dtype = _dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    align = alignment or max(dtype.itemsize & -dtype.itemsize, 16)
    raw = np.full(nbytes + align, _GARBAGE, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype for a Numba type (its own or numba-cuda's), a NumPy type, or a dtype."""
    if isinstance(dtype, cuda_types.Type):
        return np.dtype(cuda_numpy.as_dtype(dtype))
    if isinstance(dtype, core_types.Type):
        return np.dtype(core_numpy.as_dtype(dtype))
    if (plain := np.dtype(dtype)) in FLOAT8:
        raise TypeError(f"unsupported type: {plain}")  # This is numba-cuda's message.
    return plain


class _Shared:
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """Return a shared array of the block: one for each call in the source, like in compiled code.

        Shape 0 is the launch's dynamic shared memory: the same bytes at every call.
        """
        block = engine.worker().thread.block
        if shape == 0 or shape == (0,):
            size = block.launch.dynshared
            if "dynamic" not in block.shared:
                block.shared["dynamic"] = _allocate(size, np.uint8, 256)
            itemsize = _dtype(dtype).itemsize
            return block.shared["dynamic"][: size // itemsize * itemsize].view(_dtype(dtype)).view(SharedArray)
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lasti
        array = block.shared.get(place)
        if array is None:
            array = block.shared[place] = _allocate(shape, dtype, alignment).view(SharedArray)
            if (taken := sum(a.nbytes for key, a in block.shared.items() if key != "dynamic") + block.launch.dynshared) > SHARED_PER_BLOCK:
                raise ValueError(f"{block.launch.name}: blocks must have 0 to {SHARED_PER_BLOCK} bytes of shared memory, not {taken}")
        return array


class _Local:
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return _allocate(shape, dtype, alignment).view(LocalArray)


class _Atomic:
    """The stock module's operations on the arrays themselves. They are atomic, because no other thread runs between load and store."""

    def __init__(self) -> None:
        stock = kernelapi.FakeCUDAAtomic()
        for name in _ATOMICS:
            setattr(self, name, self._operation(getattr(stock, name), takes_index=name != "compare_and_swap"))

    @staticmethod
    def _operation(stock: Any, *, takes_index: bool) -> Any:
        def operation(array: Any, *args: Any) -> Any:
            activity.stores += 1
            plain = ndarray_of(array)
            if isinstance(plain, LocalArray):
                plain = plain.view(np.ndarray)
            idx, values = (args[:1], args[1:]) if takes_index else ((), args)
            old = stock(plain, *idx, *[_element_of(plain.dtype, value) for value in values])
            count_read(ATOMIC_READS)
            return element(old)

        return operation


def _element_of(dtype: np.dtype[Any], value: Any) -> Any:
    """Return a number as a NumPy scalar of this dtype; integers wrap."""
    if dtype in FLOAT8:
        raise only_copied(dtype)
    return dtype.type(wrapped(value, dtype) if dtype.kind in "iu" else value)


class _GridGroup:
    def sync(self) -> None:
        engine.grid_barrier()


class _CooperativeGroups:
    def this_grid(self) -> _GridGroup:
        return _GridGroup()


def _load(array: Any, i: Any) -> Any:
    value = ndarray_of(array)[i]
    count_read()
    return element(value)


def _store(array: Any, i: Any, value: Any) -> None:
    activity.stores += 1
    store(ndarray_of(array), i, value)


def _bits(value: Any) -> tuple[int, int]:
    """Return an integer's bit pattern and width."""
    width = value.bits if isinstance(value, Integer) else 64
    return int(value) & ((1 << width) - 1), width


class KernelModule(kernelapi.FakeCUDAModule):  # type: ignore[misc]  # numba is untyped
    """The one object that stands for `numba.cuda` inside kernels. It has no state, because all state belongs to the calling thread.

    Names without a meaning of their own on the device, such as types and dtypes, are those of the host's `numba.cuda`.
    """

    def __init__(self) -> None:
        # The base class's __init__() is not called, because it would set dimensions, which are properties here.
        self._cg, self._local, self._shared, self._atomic = _CooperativeGroups(), _Local(), _Shared(), _Atomic()
        self._const, self._fp16 = kernelapi.FakeCUDAConst(), kernelapi.FakeCUDAFp16()
        for name, vector in vector_types.items():
            for alias in (name, *vector.aliases):
                setattr(self, alias, vector)
        for name in CACHE_HINTS:
            setattr(self, name, _load if name.startswith("ld") else _store)

    def __getattr__(self, name: str) -> Any:
        # Not getattr() on the module, because that falls back to this object.
        try:
            return value_of(numba.cuda.__dict__[name])
        except KeyError:
            raise AttributeError(f"numba.cuda has no {name!r} that the simulator knows") from None

    # Indices

    # Numba makes these int32. In every operation, an int64 gives the same result.

    @property
    def threadIdx(self) -> Any:
        return _Dim3(*map(int64, engine.thread_index()))

    @property
    def blockIdx(self) -> Any:
        return _Dim3(*map(int64, engine.block_index()))

    @property
    def blockDim(self) -> Any:
        return _Dim3(*map(int64, engine.block_dim()))

    @property
    def gridDim(self) -> Any:
        return _Dim3(*map(int64, engine.grid_dim()))

    @property
    def laneid(self) -> Any:
        return int64(_lane())

    def grid(self, ndim: int) -> Any:
        me = engine.worker()
        launch, thread = me.launch, me.thread
        block, index = thread.block.index, launch.thread_indices[thread.linear]
        if ndim == 1:
            return int64(block[0] * launch.block_dim[0] + index[0])
        return self._first(ndim, tuple(b * n + i for b, n, i in zip(block, launch.block_dim, index, strict=True)))

    def gridsize(self, ndim: int) -> Any:
        return self._first(ndim, tuple(g * b for g, b in zip(engine.grid_dim(), engine.block_dim(), strict=True)))

    @staticmethod
    def _first(ndim: int, values: tuple[int, ...]) -> Any:
        if ndim not in (1, 2, 3):
            raise ValueError(f"cuda.grid and cuda.gridsize: the number of dimensions must be 1, 2, or 3, not {ndim}")
        return int64(values[0]) if ndim == 1 else tuple(map(int64, values[:ndim]))

    # Barriers and fences

    def syncthreads(self) -> None:
        engine.block_barrier()

    def syncthreads_count(self, predicate: Any) -> Any:
        return int64(sum(engine.block_vote(bool(predicate), "syncthreads_count")))

    def syncthreads_and(self, predicate: Any) -> Any:
        return int64(all(engine.block_vote(bool(predicate), "syncthreads_and")))

    def syncthreads_or(self, predicate: Any) -> Any:
        return int64(any(engine.block_vote(bool(predicate), "syncthreads_or")))

    def threadfence_block(self) -> None:
        mem.fence("block")

    def threadfence(self) -> None:
        mem.fence("gpu")

    def threadfence_system(self) -> None:
        mem.fence("sys")

    def nanosleep(self, ns: Any) -> None:
        engine.yield_("nanosleep")

    # Warps

    def activemask(self) -> Any:
        """Return the caller's lane only.

        Hardware does not define which lanes run together, so any set of lanes that execute the same call and include the caller is a legal
        result. With this one, syncwarp(activemask()) never hangs.
        """
        return _uint32(1 << _lane())

    def lanemask_lt(self) -> Any:
        return _uint32((1 << _lane()) - 1)

    def syncwarp(self, mask: int = FULL_MASK) -> None:
        engine.warp_barrier(mask)

    def shfl_sync(self, mask: int, value: Any, src_lane: Any) -> Any:
        return self._shuffle("shfl_sync", mask, value, int(src_lane) % WARP_SIZE)

    def shfl_up_sync(self, mask: int, value: Any, delta: Any) -> Any:
        return self._shuffle("shfl_up_sync", mask, value, _lane() - int(delta))

    def shfl_down_sync(self, mask: int, value: Any, delta: Any) -> Any:
        return self._shuffle("shfl_down_sync", mask, value, _lane() + int(delta))

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: Any) -> Any:
        return self._shuffle("shfl_xor_sync", mask, value, _lane() ^ int(lane_mask))

    def _shuffle(self, what: str, mask: int, value: Any, source: int) -> Any:
        # If the source is beyond the warp or takes no part, the result is the caller's own value, because hardware does not define it.
        return engine.warp_exchange(mask, value, what).get(source, value)

    def ballot_sync(self, mask: int, predicate: Any) -> Any:
        return _int32(sum(1 << lane for lane, p in engine.warp_exchange(mask, bool(predicate), "ballot_sync").items() if p))

    def all_sync(self, mask: int, predicate: Any) -> bool:
        return all(engine.warp_exchange(mask, bool(predicate), "all_sync").values())

    def any_sync(self, mask: int, predicate: Any) -> bool:
        return any(engine.warp_exchange(mask, bool(predicate), "any_sync").values())

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        return len(set(engine.warp_exchange(mask, bool(predicate), "eq_sync").values())) == 1

    def match_any_sync(self, mask: int, value: Any) -> Any:
        return _int32(sum(1 << lane for lane, v in engine.warp_exchange(mask, value, "match_any_sync").items() if v == value))

    def match_all_sync(self, mask: int, value: Any) -> tuple[Any, bool]:
        values = engine.warp_exchange(mask, value, "match_all_sync")
        same = all(bool(v == value) for v in values.values())
        return _int32(sum(1 << lane for lane in values) if same else 0), same

    # Bits, by the width of the argument, because the stock module has only 32 bits and positive numbers. brev has 64 bits for uint64 only.

    def popc(self, value: Any) -> Any:
        return _like(value, _bits(value)[0].bit_count())

    def clz(self, value: Any) -> Any:
        bits, width = _bits(value)
        return _like(value, width - bits.bit_length())

    def ffs(self, value: Any) -> Any:
        bits, _ = _bits(value)
        return _uint32((bits & -bits).bit_length())

    def brev(self, value: Any) -> Any:
        kind = _uint64 if isinstance(value, _uint64) else _uint32
        return kind(int(f"{kind(value):0{kind.bits}b}"[::-1], 2))


def _lane() -> int:
    return int(engine.worker().thread.linear % WARP_SIZE)


def _like(value: Any, result: int) -> Any:
    return type(value)(result) if isinstance(value, Integer) else int64(result)


KERNEL_MODULE = KernelModule()
STAND_INS[numba.cuda.__name__] = KERNEL_MODULE
