"""Python's garbage collector: a pause for work that makes many objects and no garbage, and what it need not visit again."""

import contextlib
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
    """Import modules whose objects exist until the process ends: the collector does not visit them then, nor what exists before.

    These are 170,000 objects for pgas, mostly Numba's. Otherwise, a full collection visits them, and the end of the process several times.
    """
    gc.collect()  # Garbage must not become what is never visited.
    with paused():
        yield
        gc.freeze()
