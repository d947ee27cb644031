"""What performs calls on the host: blocks of collectives on teams whose members map each other's memory, and the copy engine."""

from collections.abc import Mapping, Sequence
from typing import Any

#: As long as each part of a message fits into staging (PGAS_LL_BYTES), more blocks take less time than the flags of a large message.
_THROUGH_STAGING = ((0, 1), (4 << 10, 4), (16 << 10, 8), (32 << 10, 16), (64 << 10, 32))
_EXCHANGED = ((0, 1), (512, 4), (2 << 10, 16), (8 << 10, 32), (256 << 10, 64))

#: By collective, pairs of a number of bytes and the number of blocks of a call that moves more bytes between two members. These bytes are
#: those of source in broadcast, fcollect, and reduce, and those of a member's part in alltoall and reducescatter. Measured with
#: ``python -m pgas.perftests.tune`` and ``coll_on_stream`` on four H100, 2026-11-26 and -27, and on two H200, 2026-11-27.
TABLE = {
    "alltoall": _EXCHANGED,
    "broadcast": (*_THROUGH_STAGING, (128 << 10, 64), (1 << 20, 32)),
    "fcollect": _EXCHANGED,
    "reduce": (*_THROUGH_STAGING, (2 << 20, 64)),
    "reducescatter": (*_THROUGH_STAGING, (128 << 10, 64), (256 << 10, 32)),
}

#: Rows that replace those of TABLE for teams of two members, which send parts of up to 4 KiB through staging, but never slices. Measured
#: with ``coll_on_stream`` on two H100, 2026-11-27.
OF_TWO = {
    "broadcast": (*_THROUGH_STAGING, (128 << 10, 64), (256 << 10, 128), (512 << 10, 64), (1 << 20, 32)),
    "reduce": (*_THROUGH_STAGING, (128 << 10, 64), (256 << 10, 128), (512 << 10, 64)),
}

#: Maximum number of blocks of a call; a GPU holds the blocks of two calls (host_collectives.py, threads_of()).
RESIDENT = 128


class Blocks:
    """The table of a job.

    Args:
        rows: rows of PGAS_HOST_BLOCKS: (collective, bytes, blocks), which replace all rows of that collective in TABLE.
        sharing: largest number of PEs that use one GPU. Their blocks wait for each other, so that the GPU must hold all of them.
    """

    def __init__(self, rows: Sequence[tuple[str, int, int]], sharing: int = 1) -> None:
        self._most = max(1, RESIDENT // sharing)
        given = {name: tuple(sorted((nbytes, blocks) for other, nbytes, blocks in rows if other == name)) for name, _, _ in rows}
        self._table, self._of_two = TABLE | given, TABLE | OF_TWO | given

    def of(self, name: str, nbytes: int, members: int) -> int:
        """Return the number of blocks for nbytes between two members of a team with this number of members."""
        rows = (self._of_two if members == 2 else self._table)[name]
        return min(next((blocks for above, blocks in reversed(rows) if nbytes > above), 1), self._most)


def engine_bytes(requested: Mapping[str, Any], *, on_gpu: bool) -> int:
    """Return the minimum number of bytes of a put or get that the GPU's copy engine performs; 0: kernels perform all.

    The simulator's tools and traces follow only what kernels do.
    """
    traced = requested["PGAS_TRACE"].timeline or requested["PGAS_TRACE"].traffic
    return requested["PGAS_COPY_ENGINE_BYTES"] if on_gpu and not traced else 0
