"""Sizes and places of dest and source by collective: kernels check them on entry, and the host checks them before a launch.

The functions are compiled for kernels, where numbers are u64, and called on the host with ints. ``n``: number of members; ``me``: this PE's
number in the team; ``dest``, ``source``: numbers of elements; ``same``: whether dest is source.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pgas.kernels.compiler import constant, u32, u64

_0, _1, _SHORT = constant(0), constant(1), constant((1 << 32) - 1)
#: Parts of a message begin at multiples of this number of bytes, so that a part is aligned like the whole.
_GRAIN = constant(128)


def _of_source(n, dest, source):
    return source


def _share_of_source(n, dest, source):
    return u64(u32(source) // u32(n)) if source <= _SHORT else source // n  # 64-bit division takes 0.1 us


def share_of(nbytes, i, k):
    """Return the offset and the number of bytes of part i of k. Parts are as long as each other, except for the last ones."""
    grains = (nbytes + _GRAIN - _1) // _GRAIN + k - _1
    share = (u64(u32(grains) // u32(k)) if grains <= _SHORT else grains // k) * _GRAIN  # 64-bit division takes 0.1 us
    first = min(i * share, nbytes)
    return first, min(share, nbytes - first)


def _if_any(same, n, me, dest, source):
    return same and source != _0 and n > _1


class Sizes(NamedTuple):
    """The rules of a collective."""

    moved: Callable[[Any, Any, Any], Any] = _of_source  #: ``moved(n, dest, source)``: number of elements from one member to another
    known: bool = True  #: whether a member knows how many elements it needs before the others have sent their numbers
    divides: bool = False  #: whether source must be divisible, so that n * moved() is its size
    dest: Callable[[Any, Any, Any], Any] = _of_source  #: ``dest(n, dest, source)``: number of elements that dest must have
    source: Callable[[Any, Any, Any], Any] = _of_source  #: ``source(n, dest, source)``: number of elements that source must have
    #: ``in_place(same, n, me, dest, source)``: whether dest is source although that is not allowed; None: it is allowed
    in_place: Callable[[Any, Any, Any, Any, Any], Any] | None = None


#: The rules of all other collectives: both have as many elements as source, and dest may be source.
ALIKE = Sizes()

# In fcollect and reducescatter, member 0's own part comes first.
_OTHERS = {
    "alltoall": Sizes(moved=_share_of_source, divides=True, in_place=_if_any),
    "alltoallv": Sizes(known=False, in_place=lambda same, n, me, dest, source: same and dest != _0 and n > _1),
    "collect": Sizes(known=False, in_place=_if_any),
    "fcollect": Sizes(
        dest=lambda n, dest, source: n * source,
        in_place=lambda same, n, me, dest, source: same and source != _0 and n > _1 and me != 0,
    ),
    "reducescatter": Sizes(
        moved=lambda n, dest, source: dest,
        dest=lambda n, dest, source: dest,
        source=lambda n, dest, source: n * dest,
        in_place=lambda same, n, me, dest, source: same and dest != _0 and me != 0,
    ),
}


def of(plain: str) -> Sizes:
    """Return the rules of a collective, by its name without the suffix of a scope."""
    return _OTHERS.get(plain, ALIKE)
