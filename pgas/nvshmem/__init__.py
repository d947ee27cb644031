"""NVSHMEM's Python names: programs for nvshmem4py run on pgas. docs/porting.md has a table of them.

``import pgas.nvshmem as nvshmem``, or, for unchanged programs, ``python -m pgas.run --as-nvshmem prog.py``.
"""

from pgas.nvshmem import core as core
from pgas.nvshmem.core.setup import NAMES_OF as __version__

__all__ = ["__version__", "core"]
