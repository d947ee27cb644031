"""Lanes of a warp together.

Lanes of a warp that one has left for a loop need not wait for it at the end of the branch: they may go on in parts, which nothing brings
together but a barrier of all (CUDA, Independent Thread Scheduling; seen on H100). Parts have masks of their own, and may be together again
later. ptxas takes what activemask and votes return, and what follows from it, for values that such lanes share: it let one lane add n to a
cursor for the first lanes of two parts, its own n twice, and one lane leave the landing cells of two parts as if they were one. So masks
come from ptx.peers and ptx.here, which it cannot see through. What one lane does for all is a branch without a loop; from group() or
ptx.here() to the end of queue.submit loops are run by all lanes that are here, which vote on each turn; and every collective is of all of
them, whatever groups they form, but for queues that are full.
"""

from pgas.kernels.compiler import device, ptx, u64


@device
def group(key):
    """The lanes that are here now: their mask; of those with the same key their mask, the caller's number among them, how many they are."""
    here, mask = ptx.peers(key)
    return here, mask, ptx.popc(mask & ptx.lanemask_lt()), ptx.popc(mask)


@device
def of_first(here, mask, value):
    """The value of the first lane of the caller's group; all lanes that are here call it."""
    return ptx.shfl_u64(here, value, ptx.lowest(mask))


@device
def place(here):
    """The caller's number among the lanes that are here."""
    return u64(ptx.popc(here & ptx.lanemask_lt()))
