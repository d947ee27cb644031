"""A short check that a job works, for tests that start jobs themselves: each PE sends to its right neighbor."""

import numpy as np
import pytest
from numba import cuda

from conformance import job
from conformance import library as pgas
from conformance.checks import THROUGH_NIC, difference, everywhere

__all__ = ["once_is_enough", "ring_works", "send", "works_afterwards"]


#: A job with a software card takes seconds to start, so tests that do not depend on the transport run over p2p only.
once_is_enough = pytest.mark.skipif(THROUGH_NIC, reason="the same for every transport: tested over p2p")


@pgas.jit
def send(dest, value, pe):
    pgas.p(dest, cuda.threadIdx.x, value + cuda.threadIdx.x, pe)


def ring_works(seed=0):
    """Check the running job."""
    me, n = pgas.my_pe(), pgas.n_pes()
    dest = pgas.zeros(5, np.int64)
    send[1, 5](dest, 100 * me + seed, (me + 1) % n)
    pgas.barrier_all()
    everywhere(difference(dest, 100 * ((me - 1) % n) + seed + np.arange(5)))
    pgas.free(dest)


def works_afterwards():
    """Check that no job is running and that another one works."""
    assert not job.is_running()
    with pgas.init():
        ring_works()
