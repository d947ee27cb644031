"""Functions that Numba compiles for the CPU, kept on disk: atomics, and the loops of transports/hostloop."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import llvmlite
import numba
from numba import njit, types
from numba.core import caching
from numba.core.runtime import rtsys

from pgas.base import disk_cache


class _Impl(caching.CompileResultCacheImpl):  # type: ignore[misc, no-any-unimported]
    _locator_classes = disk_cache.places(caching.CompileResultCacheImpl)


class _Loaded(caching.FunctionCache):  # type: ignore[misc, no-any-unimported]
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return saved code, None if there is none. Numba's own method first loads its typing and lowering, which takes 0.2 s."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class _Cache(disk_cache.OnDisk, _Loaded):
    _impl_class = _Impl


def compiled(signature: Any, function: Callable[..., Any]) -> Any:
    """Return a dispatcher with this one signature, compiled for the CPU or loaded from disk.

    Numba's key covers the values of the function's free variables, but not the globals that it uses.
    """
    dispatcher = njit(nogil=True)(function)
    disk_cache.keep(dispatcher, lambda: _Cache(function, lambda: (numba.__version__, llvmlite.__version__)))
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def on_host(function: Callable[..., Any]) -> Any:
    """Mark a function whose arguments and result are int64; it is compiled for the CPU and inlined into its callers.

    Numba would compile it again for every constant argument (Literal[int]); this compiles it once.
    """
    dispatcher = njit(nogil=True)(function)
    resolve = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: resolve(tuple(types.int64 for _ in args), kws)
    return dispatcher


def compile_now(functions: Iterable[Any]) -> None:
    """Compile functions that on_host() has marked, so that their first calls do not wait for the compiler."""
    for function in functions:
        function.compile((types.int64,) * len(inspect.signature(function.py_func).parameters))
