"""Scopes: the threads that call an operation together: a thread, a warp (``_warp``), or a block (``_block``), like NVSHMEM's thread groups.

All threads of the warp or block must call the operation with the same arguments; none may have returned. Each does part of the work. The
operation synchronizes them on entry, so that it copies what any of them wrote to the source. Its blocking form synchronizes them again on
return, so that any of them may reuse the source.
"""

from dataclasses import dataclass
from typing import Any

from pgas.kernels.compiler import backend, ptx


@dataclass(frozen=True)
class Scope:
    """Threads that make one call: the caller is thread rank() of size() threads, and sync() waits for all of them."""

    suffix: str
    rank: Any
    size: Any
    sync: Any

    def entry(self, name: str) -> Any:
        """Return the sync() at the start of operation ``name``.

        In the simulator it rejects a warp or block that is not complete, or whose threads pass different arguments.
        """
        return backend.entry(self.sync, self.suffix, f"pgas.{name}") if self.suffix else self.sync


THREAD = Scope("", ptx.zero, ptx.one, ptx.nothing)
WARP = Scope("_warp", ptx.lane, ptx.warp_size, ptx.syncwarp)
BLOCK = Scope("_block", ptx.thread_rank, ptx.block_size, ptx.syncthreads)
