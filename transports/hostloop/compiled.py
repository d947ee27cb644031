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

from pgas.base import disk_cache
from pgas.base.backend import SIMULATOR
from pgas.kernels import compiler
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
def source_stamp(*of_caller: str) -> int:
    """Return a number that changes with any source that a loop is compiled from. of_caller: kernel()'s."""
    paths = [Path(__file__).parent, *map(Path, (*mlx5.__path__, *compiler.__path__)), Path(memory.__file__ or ""), *map(Path, of_caller)]
    sources = [source for path in paths for source in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest()
    return int.from_bytes(digest[:7], "little")


def kernel(signature: Any, make: Callable[[int], Callable[..., Any]], *sources: str) -> Any:
    """Compile what make returns; make's argument must be used in it, because the values of free variables are part of Numba's key.

    Args:
        signature: of what make returns.
        make: gets source_stamp().
        sources: files and folders of the caller, whose names the loop uses.
    """
    return disk_cache.compiled(signature, make(source_stamp(*sources)))


if not SIMULATOR:

    class _CacheImpl(CUDACacheImpl):  # type: ignore[misc, no-any-unimported]
        """Stores kernels that use pgas's primitives, which Numba's own is made to refuse (kernels/compiler/numba_cuda.py)."""

        _locator_classes = disk_cache.places(CUDACacheImpl)

    class _Cache(disk_cache.OnDisk, CUDACache):  # type: ignore[misc, no-any-unimported]
        """A disk cache with all sources of a loop in its key: none of the job's constants is in the code."""

        _impl_class = _CacheImpl
        stamp = 0

        def _index_key(self, sig: Any, codegen: Any) -> Any:
            return (*super()._index_key(sig, codegen), self.stamp)


def keep(kernel_: Any, *sources: str) -> None:
    """Give a CUDA kernel a disk cache (the simulator's need none). sources: as kernel()'s."""
    if not SIMULATOR:
        with contextlib.suppress(disk_cache.NoPlace):  # compiled in every process, ten seconds
            kernel_._cache = _Cache(kernel_.py_func)
            kernel_._cache.stamp = source_stamp(*sources)
