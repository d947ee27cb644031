"""pgas: an NVSHMEM-style symmetric heap in GPU memory, with put, get and atomics for Numba CUDA kernels.

Start with README.md. ``__all__`` is the stable API.
"""

from pgas.base import launcher as _launcher
from pgas.base.version import __version__ as __version__

if not _launcher.is_launcher():  # a command that only starts programs is there in 0.1 s without the compiler, and in 0.9 s with it
    from pgas.api import *  # noqa: F403
    from pgas.api import __all__ as __all__
