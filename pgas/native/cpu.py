"""Functions that Numba compiles for the CPU, kept on disk: atomics, and the loops of transports/hostloop."""

import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import llvmlite
import numba
from numba import njit, types
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock
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


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C: KeyboardInterrupt in a callback of LLVM would be printed, and lost."""
    if threading.current_thread() is not threading.main_thread() or (before := signal.getsignal(signal.SIGINT)) is None:
        yield  # Python handles signals in the main thread only, and cannot restore another library's handler.
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


# A child that is forked while another thread compiles would otherwise wait for that thread, which it does not have.
os.register_at_fork(
    before=global_compiler_lock.acquire, after_in_parent=global_compiler_lock.release, after_in_child=global_compiler_lock.release
)


def _kept(function: Callable[..., Any]) -> Any:
    """Return a dispatcher whose code is kept on disk. Numba's key covers the values of free variables, but not the globals that it uses."""
    dispatcher = njit(nogil=True)(function)
    disk_cache.keep(dispatcher, lambda: _Cache(function, lambda: (numba.__version__, llvmlite.__version__)))
    return dispatcher


def compiled(signature: Any, function: Callable[..., Any]) -> Any:
    """Return a dispatcher with this one signature, compiled for the CPU or loaded from disk."""
    dispatcher = _kept(function)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def compiled_on_use(signature: Any, function: Callable[..., Any]) -> Any:
    """Return a dispatcher like that of compiled(), whose code is compiled or loaded when it is called; for short functions."""
    dispatcher = _kept(function)
    resolve = dispatcher.get_call_template

    def entry_point(*_: Any) -> Any:
        with global_compiler_lock, _without_ctrl_c():
            if dispatcher._can_compile:
                dispatcher.compile(signature)
                dispatcher.disable_compile()
        return dispatcher.get_overload(signature)

    dispatcher._compile_for_args = entry_point  # Numba's, for a call by Python without a match, would take the types of the operands.
    dispatcher.get_call_template = lambda args, kws: (entry_point(), resolve(args, kws))[1]
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
