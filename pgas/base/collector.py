"""Pauses Python's garbage collector, and excludes imported modules from it."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the collector, which would otherwise visit the growing number of objects again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import modules whose objects exist until the process ends: the collector does not visit them afterward.

    These are 160,000 objects for pgas, mostly Numba's. Otherwise, a full collection visits them, and the end of the process several times.
    """
    with paused():
        before = gc.get_objects()
        yield
        gc.freeze()
        for thing in before:  # Those of the program are visited as before: they may be in cycles of which only the collector knows.
            _untrack(id(thing))
            _track(id(thing))


# They take addresses, because ctypes asks an object for its __class__, which a proxy computes, or warns about, as PyTorch's do.
_untrack, _track = (ctypes.PYFUNCTYPE(None, ctypes.c_void_p)((f"PyObject_GC_{name}", ctypes.pythonapi)) for name in ("UnTrack", "Track"))
