"""Scopes: who calls an operation together. Names end in nothing, ``_warp`` or ``_block`` (NVSHMEM's thread groups).

A warp or block operation is called by all its threads, none of which may have returned, with the same arguments: each takes a share. It
synchronizes them on entry, so that what any of them wrote to the source is copied, and its blocking form again on return, so that any
of them may reuse the source.
"""

from dataclasses import dataclass
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels.compiler import ptx

if SIMULATOR:
    from pgas.sim import engine

__all__ = ["BLOCK", "THREAD", "WARP", "Scope"]


@dataclass(frozen=True)
class Scope:
    """rank() of size() threads take part; sync() waits for all of them."""

    suffix: str
    rank: Any
    size: Any
    sync: Any

    def entry(self, name: str) -> Any:
        """Return the sync() with which the operation ``name`` begins. In the simulator it refuses a group that is not complete."""
        if not SIMULATOR or not self.suffix:
            return self.sync
        meet = engine.whole_warp if self.suffix == "_warp" else engine.whole_block
        return lambda: meet(f"pgas.{name}")


THREAD = Scope("", ptx.zero, ptx.one, ptx.nothing)
WARP = Scope("_warp", ptx.lane, ptx.warp_size, ptx.syncwarp)
BLOCK = Scope("_block", ptx.thread_rank, ptx.block_size, ptx.syncthreads)
