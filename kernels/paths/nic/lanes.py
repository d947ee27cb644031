"""Lanes of a warp together.

After a divergent loop, lanes may not reconverge at the end of the branch: they go on in parts, each with an active mask of its own, until
a barrier of all of them (CUDA, Independent Thread Scheduling; seen on H100). Later they may be together again.

ptxas takes the results of activemask and votes for values that such lanes share. It let one lane add n to a cursor for the first lanes of
two parts (its own n, twice), and one lane release the landing cells of two parts as if they were one. So masks come from ptx.peers and
ptx.here, which ptxas cannot see through.

Rules for callers:

* A branch in which one lane works for all has no loop.
* From group() or ptx.here() to the end of queue.submit, all active lanes run every loop, and vote in each turn.
* Collectives use the ``here`` mask, except when a queue is full.
"""

from pgas.kernels.compiler import device, ptx, u64


@device
def group(key):
    """Return the mask of the active lanes, the mask of those with the same key, the caller's rank in it, and its size."""
    here, mask = ptx.peers(key)
    return here, mask, ptx.popc(mask & ptx.lanemask_lt()), ptx.popc(mask)


@device
def of_first(here, mask, value):
    """Return the value of the first lane of the caller's group; all active lanes call it."""
    return ptx.shfl_u64(here, value, ptx.lowest(mask))


@device
def place(here):
    """Return the caller's rank among the active lanes."""
    return u64(ptx.popc(here & ptx.lanemask_lt()))


@device
def follows(here, mask, rank, addr, nbytes):
    """Whether the elements of the caller's group, of nbytes each, are contiguous; all active lanes call it."""
    return addr == of_first(here, mask, addr) + u64(rank) * nbytes
