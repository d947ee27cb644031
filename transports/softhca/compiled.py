"""How the engine's source is compiled, for the CPU or a GPU, and a disk cache that notices a change in any of its modules.

Numba's own key of cached code is the source file of the function itself; the engine is spread over several files and takes its constants
from the data sheet. What is compiled at top level is therefore made over a number that stands for all of them (source_stamp).
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit, types

from pgas import disk_cache
from pgas.backend import SIMULATOR
from pgas.kernels import compiler, ptx
from pgas.sim import memory
from pgas.transports import mlx5

if not SIMULATOR:
    from numba import cuda
    from numba.cuda import types as cuda_types
    from numba.cuda.dispatcher import CUDACache, CUDACacheImpl

__all__ = ["device", "keep", "kernel", "on_host", "source_stamp"]


def on_host(function: Callable[..., Any]) -> Any:
    """Mark a function whose arguments and result are int64: compiled for the CPU, into what calls it.

    Numba compiles a function anew for every constant that it is called with (Literal[int]); here once will do.
    """
    return _of_integers(njit(nogil=True)(function), types.int64)


def device(function: Callable[..., Any]) -> Any:
    """Mark a function of the engine likewise: compiled for what runs it, the CPU or a GPU."""
    return on_host(function) if SIMULATOR else _of_integers(cuda.jit(device=True)(function), cuda_types.int64)


def _of_integers(dispatcher: Any, int64: Any) -> Any:
    resolve = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: resolve(tuple(int64 for _ in args), kws)
    return dispatcher


@functools.cache
def source_stamp() -> int:
    """Return a number that changes with any source that the engine is compiled from."""
    folders = [Path(__file__).parent, *map(Path, mlx5.__path__)]
    sources = [Path(module.__file__ or "") for module in (memory, ptx, compiler)]
    sources += [path for folder in folders for path in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()
    return int.from_bytes(digest[:7], "little")


def kernel(signature: Any, make: Callable[[int], Callable[..., Any]]) -> Any:
    """Compile what make returns; make's argument must be used in it, because the values of free variables are part of Numba's key."""
    return disk_cache.compiled(signature, make(source_stamp()))


if not SIMULATOR:

    class _CacheImpl(CUDACacheImpl):  # type: ignore[misc, no-any-unimported]
        """Stores kernels that use pgas's primitives, which Numba's own is made to refuse (kernels/compiler.py)."""

        _locator_classes = disk_cache.places(CUDACacheImpl)

    class _Cache(disk_cache.OnDisk, CUDACache):  # type: ignore[misc, no-any-unimported]
        """A disk cache with all sources of the engine in its key: none of the job's constants is in the code."""

        _impl_class = _CacheImpl

        def _index_key(self, sig: Any, codegen: Any) -> Any:
            return (*super()._index_key(sig, codegen), source_stamp())


def keep(kernel_: Any) -> None:
    """Give a CUDA kernel of the engine a disk cache (the simulator's need none)."""
    if not SIMULATOR:
        with contextlib.suppress(disk_cache.NoPlace):  # compiled in every process, ten seconds
            kernel_._cache = _Cache(kernel_.py_func)
