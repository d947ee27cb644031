"""Functions by which the active lanes of a warp act together.

After a divergent loop, lanes do not necessarily reconverge at the end of the branch: they continue in subsets, each with its own active
mask, until a barrier of all of them (CUDA, Independent Thread Scheduling; observed on H100). Later they may be together again.

ptxas assumes that such lanes share the results of activemask and votes. It made one lane add n to a cursor on behalf of the first lanes of
two subsets (its own n, twice), and one lane release the landing cells of two subsets as if they were one. Masks therefore come from
ptx.peers and ptx.here, which are opaque to ptxas.

Rules for callers:

* A branch in which one lane works on behalf of all must not contain a loop.
* From group() or ptx.here() to the end of queue.submit, all active lanes must run every loop and vote in each iteration.
* Warp-collective calls must use the ``here`` mask, except when a queue is full.
"""

from pgas.kernels.compiler import device, ptx, u64


@device
def group(key):
    """Return the mask of the active lanes, the mask of those with the same key, the caller's rank in it, and its size."""
    here, mask = ptx.peers(key)
    return here, mask, ptx.popc(mask & ptx.lanemask_lt()), ptx.popc(mask)


@device
def of_first(here, mask, value):
    """Return the value of the first lane of the caller's group; all active lanes must call it."""
    return ptx.shfl_u64(here, value, ptx.lowest(mask))


@device
def place(here):
    """Return the caller's rank among the active lanes."""
    return u64(ptx.popc(here & ptx.lanemask_lt()))


@device
def follows(here, mask, rank, addr, nbytes):
    """Whether the elements of the caller's group, of nbytes each, are contiguous; all active lanes must call it."""
    return addr == of_first(here, mask, addr) + u64(rank) * nbytes
