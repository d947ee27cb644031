"""The simulator: CUDA kernels on the CPU, on memory that several processes share.

- `engine`: every CUDA thread is a greenlet; barriers, warps, scheduling, deadlock reports. `engine.install()` puts it under `@cuda.jit`.
- `memory`: real atomics on raw addresses.
- `weak`: the same functions on a memory that delays and reorders remote stores, to find missing fences.

Device code accesses memory through `mem`, which is one of the two:

    from pgas.sim import mem
    mem.store(addr, 1, 4)
    mem.fence("sys")

`mem` has the functions of `memory` as attributes. `set_memory_model(WeakMemory(seed, own_lo, own_hi))` exchanges them, and
`set_memory_model(None)` restores those of `memory`. Both leave the object in place, so it may be imported early. Keep `mem`, not
its functions. `memory_model()` returns the module or object that has them.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pgas.base.errors import PgasError


class Mem:
    """The functions of the current memory model. `pgas.sim.memory` documents them."""

    load: Callable[[int, int], int]
    load_acquire: Callable[[int, int], int]
    store: Callable[[int, int, int], None]
    store_release: Callable[[int, int, int], None]
    atomic_add: Callable[[int, int, int], int]
    atomic_exchange: Callable[[int, int, int], int]
    atomic_and: Callable[[int, int, int], int]
    atomic_or: Callable[[int, int, int], int]
    atomic_xor: Callable[[int, int, int], int]
    atomic_compare_swap: Callable[[int, int, int, int], int]
    atomic_add_f32: Callable[[int, float], float]
    atomic_add_f64: Callable[[int, float], float]
    fence: Callable[..., None]
    copy_strided: Callable[..., None]
    read_sources: Callable[..., None]
    copy_elements: Callable[..., None]

    def __getattr__(self, name: str) -> Any:
        # This is called once, because importing `memory` takes 0.3 s and is therefore done at the first use.
        if name not in Mem.__annotations__:
            raise AttributeError(f"the memory model has no {name!r}")
        memory_model()
        return getattr(self, name)


mem = Mem()
_model: Any = None


def memory_model() -> Any:
    """Return the source of `mem`: the module `pgas.sim.memory` or a `WeakMemory`."""
    if _model is None:
        set_memory_model(None)
    return _model


def set_memory_model(model: Any = None) -> None:
    """Give `mem` the functions of a `WeakMemory`, or of the plain memory (None). Raises PgasError if a kernel is running."""
    global _model
    if model is None:
        from pgas.sim import memory

        model = memory
    if hasattr(model, "launch_ended") or hasattr(_model, "launch_ended"):
        from pgas.sim import engine

        engine.set_observer(model if hasattr(model, "launch_ended") else None)
    for name in Mem.__annotations__:
        setattr(mem, name, getattr(model, name))
    _model = model


def forbid(why: str) -> None:
    """Let every function of `mem` raise a PgasError with this text."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PgasError(why)

    set_memory_model(SimpleNamespace(**dict.fromkeys(Mem.__annotations__, refuse)))
