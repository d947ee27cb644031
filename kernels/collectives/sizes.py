"""Sizes and places of dest and source by collective: kernels check them on entry, and the host checks them before a launch.

The functions are compiled for kernels, where numbers are u64, and called on the host with ints. ``n``: number of members; ``me``: this PE's
number in the team; ``dest``, ``source``: numbers of elements; ``same``: whether dest is source.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pgas.kernels.compiler import constant, u32, u64

_0, _1, _SHORT = constant(0), constant(1), constant((1 << 32) - 1)


def _of_source(n, dest, source):
    return source


def _of_dest(n, dest, source):
    return dest


def _share_of_source(n, dest, source):
    return u64(u32(source) // u32(n)) if source <= _SHORT else source // n  # 64-bit division takes 0.1 us


def _all_sources(n, dest, source):
    return n * source


def _all_dests(n, dest, source):
    return n * dest


def _any(n, dest, source):
    return _0


def _if_source(same, n, me, dest, source):
    return same and source != _0 and n > _1


def _if_dest(same, n, me, dest, source):
    return same and dest != _0 and n > _1


def _if_source_not_first(same, n, me, dest, source):
    return same and source != _0 and n > _1 and me != 0  # member 0's own part of dest is the first


def _if_dest_not_first(same, n, me, dest, source):
    return same and dest != _0 and me != 0


class Sizes(NamedTuple):
    """The rules of a collective."""

    moved: Callable[[Any, Any, Any], Any] = _of_source  #: ``moved(n, dest, source)``: number of elements from one member to another
    divides: bool = False  #: whether source must be divisible, so that n * moved() is its size
    dest: Callable[[Any, Any, Any], Any] = _of_source  #: ``dest(n, dest, source)``: number of elements that dest must have
    source: Callable[[Any, Any, Any], Any] = _of_source  #: ``source(n, dest, source)``: number of elements that source must have
    #: ``in_place(same, n, me, dest, source)``: whether dest is source although that is not allowed; None: it is allowed
    in_place: Callable[[Any, Any, Any, Any, Any], Any] | None = None


#: The rules of all other collectives: both have as many elements as source, and dest may be source.
ALIKE = Sizes()

_OTHERS = {
    "alltoall": Sizes(moved=_share_of_source, divides=True, in_place=_if_source),
    "alltoallv": Sizes(dest=_any, source=_any, in_place=_if_dest),
    "collect": Sizes(dest=_any, source=_any, in_place=_if_source),
    "fcollect": Sizes(dest=_all_sources, in_place=_if_source_not_first),
    "reducescatter": Sizes(moved=_of_dest, dest=_of_dest, source=_all_dests, in_place=_if_dest_not_first),
}


def of(plain: str) -> Sizes:
    """Return the rules of a collective, by its name without the suffix of a scope."""
    return _OTHERS.get(plain, ALIKE)
