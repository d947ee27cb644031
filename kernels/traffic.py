"""Counters of what kernels send and fetch, by family of operations and PE (PGAS_TRACE=traffic), in private memory after the state page.

The code is compiled only if window.COUNTS is True. A call takes two atomics without a result. Kernels of a PE only add; the host reads.
"""

from pgas.kernels import window
from pgas.kernels.compiler import constant, device, ptx, u64

#: Families of operations, in the order of the table. Those of COLLECTIVE count bytes that this member brings, at its own number; the last
#: two count WQEBBs or requests, and doorbells.
FAMILIES = ("put", "get", "element", "signal", "atomic", "collective", "WQE", "doorbell")
WQE, DOORBELL = (constant(FAMILIES.index(name)) for name in ("WQE", "doorbell"))

#: Those that move data to or from a peer.
MOVING = FAMILIES[: FAMILIES.index("collective")]

#: The family of operations on a peer other than atomics, by name without scope.
_FAMILY = {
    **dict.fromkeys(("put", "put_nbi", "iput", "put_signal", "put_signal_nbi"), "put"),
    **dict.fromkeys(("get", "get_nbi", "iget"), "get"), "p": "element", "g": "element", "signal_op": "signal",
}  # fmt: skip


def family_of(name: str) -> str | None:
    """Return the family of an operation on a peer, given by its name without scope; None for all other functions."""
    return "atomic" if name.startswith("atomic_") else _FAMILY.get(name)


#: A cell has the numbers of operations and of bytes.
CELL_BYTES = 16
TABLE_BYTES = len(FAMILIES) * window.TRAFFIC_PES * CELL_BYTES

_TABLE, _ROW, _CELL, _PES_MASK = (constant(n) for n in (window.TRAFFIC, window.TRAFFIC_PES, CELL_BYTES, window.TRAFFIC_PES - 1))
_0, _1, _WORD = constant(0), constant(1), constant(8)


@device
def count(family, pe, operations, nbytes):
    """Count operations on a PE."""
    at = _TABLE + (u64(family) * _ROW + (u64(pe) & _PES_MASK)) * _CELL
    ptx.red_add_sys_u64(at, operations)
    if nbytes != _0:
        ptx.red_add_sys_u64(at + _WORD, nbytes)


@device
def count_post(number, wqebbs):
    """Count what was posted to a queue pair, given by its number: WQEBBs, or a request."""
    count(WQE, number // window.NUM_QPS, wqebbs, _0)


@device
def count_doorbell(number):
    """Count a doorbell of a queue pair."""
    count(DOORBELL, number // window.NUM_QPS, _1, _0)
