"""Lanes of a warp together: groups of those that bring the same key, and landing cells (queue.py) that a group shares."""

from pgas.kernels import ptx, queue
from pgas.kernels.compiler import constant, device

_0 = constant(0)


@device
def group(key):
    """The lanes that are here now with the same key: their mask, the caller's number among them, how many they are."""
    mask = ptx.peers(key)
    return mask, ptx.popc(mask & ptx.lanemask_lt()), ptx.popc(mask)


@device
def of_first(mask, value):
    """The value of the group's first lane."""
    return ptx.shfl_u64(mask, value, ptx.lowest(mask))


@device
def try_cell(op, deadline, mask, rank):
    """queue.try_cell for a group."""
    cell = _0
    if rank == 0:
        cell = queue.try_cell(op, deadline)
    return of_first(mask, cell)


@device
def release_cell(cell, mask, rank):
    """Give a group's cell back when all its lanes have read it."""
    ptx.syncwarp_mask(mask)
    if rank == 0:
        queue.release_cell(cell)
