"""Which bytes a collective moves (docs/api/collectives.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Parts of a message begin at multiples of this number of bytes (pgas/kernels/collectives/call.py).
_GRAIN = 128

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands of a member's call: addresses and sizes in bytes; rows: displacements and counts of alltoallv in bytes."""

    dest: int
    dest_bytes: int
    source: int
    source_bytes: int
    part: tuple[int, int] | None
    rows: Sequence[Sequence[int]] | None


def _part(nbytes: int, part: tuple[int, int] | None) -> Range:
    """Return the offset and size of a part of a message."""
    if part is None:
        return 0, nbytes
    i, k = part
    share = ((nbytes + _GRAIN - 1) // _GRAIN + k - 1) // k * _GRAIN
    first = min(i * share, nbytes)
    return first, min(share, nbytes - first)


def read(name: str, mine: Operands, members: int) -> Iterator[Range]:
    """Yield what a member's call reads: offsets in its source, and sizes."""
    if mine.rows is not None:
        yield from zip(mine.rows[2], mine.rows[3], strict=True)
    elif name in ("alltoall", "reducescatter"):
        size = mine.source_bytes // members if name == "alltoall" else mine.dest_bytes
        first, nbytes = _part(size, mine.part)
        for m in range(members):
            yield m * size + first, nbytes
    else:
        yield _part(mine.source_bytes, mine.part)


def written(name: str, writer: int, member: int, operands: Sequence[Operands]) -> Iterator[Range]:
    """Yield what a member's call writes on another member: offsets in the dest there, and sizes. Members are numbers in the team."""
    his, mine = operands[writer], operands[member]
    if mine.rows is not None:
        yield mine.rows[0][writer], mine.rows[1][writer]
    elif name in ("inscan", "exscan"):  # Only a member's own call writes its dest.
        yield from ((0, mine.source_bytes),) if writer == member else ()
    elif name == "collect":
        yield sum(o.source_bytes for o in operands[:writer]), his.source_bytes
    elif name in ("fcollect", "alltoall"):
        size = his.source_bytes if name == "fcollect" else his.source_bytes // len(operands)
        first, nbytes = _part(size, mine.part)
        yield writer * size + first, nbytes
    else:
        yield _part(mine.dest_bytes if name == "reducescatter" else mine.source_bytes, mine.part)
