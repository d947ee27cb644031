"""Which bytes a collective moves (docs/memory-model.md, "Collectives"; kernels/collectives/sizes.py)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgas.kernels.collectives import near, sizes
from pgas.kernels.scope import BLOCK, THREAD

SCANS = ("inscan", "exscan")  #: A member does not wait for those after it.

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

    def message(self, name: str, members: int) -> Range:
        """Return the offset and size of what goes from one member to another, in the whole that is meant for one member."""
        nbytes = int(sizes.of(name).moved(members, self.dest_bytes, self.source_bytes))
        return (0, nbytes) if self.part is None else sizes.share_of(nbytes, *self.part)


def staging(name: str, *, together: bool) -> int:
    """Return the maximum size of messages that go through staging; together: whether a warp or block calls."""
    return int(near.staged(BLOCK if together or name == "broadcast" else THREAD))


def is_staged(name: str, mine: Operands, members: int, limit: int) -> bool:
    """Whether only a member's own call writes its dest. limit: the result of staging()."""
    return name in SCANS or (sizes.of(name).known and mine.message(name, members)[1] <= limit)


def is_empty(name: str, mine: Operands, members: int) -> bool:
    """Whether a member's call, or its part, moves nothing and therefore returns without the others."""
    return sizes.of(name).known and mine.message(name, members)[1] == 0


def read(name: str, mine: Operands, members: int) -> Iterator[Range]:
    """Yield what a member's call reads: offsets in its source, and sizes."""
    if mine.rows is not None:
        yield from zip(mine.rows[2], mine.rows[3], strict=True)
        return
    first, nbytes = mine.message(name, members)
    size = mine.source_bytes // members
    for m in range(members if name in ("alltoall", "reducescatter") else 1):
        yield m * size + first, nbytes


def written(name: str, writer: int, member: int, operands: Sequence[Operands]) -> Iterator[Range]:
    """Yield what a member sends to another's dest: offsets in the dest there, and sizes. Members are numbers in the team."""
    his, mine = operands[writer], operands[member]
    if mine.rows is not None:
        yield mine.rows[0][writer], mine.rows[1][writer]
    elif name == "collect":
        yield sum(o.source_bytes for o in operands[:writer]), his.source_bytes
    elif name in ("fcollect", "alltoall"):
        first, nbytes = mine.message(name, len(operands))
        yield writer * (his.source_bytes if name == "fcollect" else his.source_bytes // len(operands)) + first, nbytes
    else:
        yield mine.message(name, len(operands))
