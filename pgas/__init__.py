"""pgas: an NVSHMEM-style PGAS runtime for Numba CUDA kernels: a symmetric heap in GPU memory, with put, get, and atomics.

Start with README.md. ``__all__`` is the stable API.
"""

import sys as _sys

# A command of pgas must not import modules of the working folder, which ``python -m`` searches first.
if _sys.argv[:1] == ["-m"] and _sys.orig_argv[-len(_sys.argv)].removeprefix("-m").partition(".")[0] == "pgas" and not _sys.flags.safe_path:
    del _sys.path[0]

from pgas.base import collector as _collector
from pgas.base import config as _config
from pgas.base import launcher as _launcher
from pgas.base.version import __version__ as __version__

if not _launcher.is_launcher():  # A command that only starts programs takes 0.1 s without the compiler, and 0.6 s with it.
    from pgas.base import tracebacks as _tracebacks

    _tracebacks.install()  # First, because the import itself may find a mistake.
    with _collector.importing():
        from pgas.api import *  # noqa: F403
        from pgas.api import __all__ as __all__

        if _config.read("PGAS_CHECK"):
            from pgas.check import start as _start

            _start()
