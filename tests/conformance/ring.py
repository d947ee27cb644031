"""A short proof that a job works: everybody sends to the right. For tests that start jobs themselves."""

import numpy as np
import pytest
from numba import cuda

from conformance import job
from conformance import library as pgas
from conformance.checks import THROUGH_NIC, difference, everywhere

__all__ = ["once_is_enough", "ring_works", "send", "works_afterwards"]


#: A job with a software card takes seconds to start: what does not depend on the transport is tested over mapped memory.
once_is_enough = pytest.mark.skipif(THROUGH_NIC, reason="the same for every transport: tested over p2p")


@pgas.jit
def send(dest, value, pe):
    pgas.p(dest, cuda.threadIdx.x, value + cuda.threadIdx.x, pe)


def ring_works(seed=0):
    """In the job that runs."""
    me, n = pgas.my_pe(), pgas.n_pes()
    dest = pgas.zeros(5, np.int64)
    send[1, 5](dest, 100 * me + seed, (me + 1) % n)
    pgas.barrier_all()
    everywhere(difference(dest, 100 * ((me - 1) % n) + seed + np.arange(5)))
    pgas.free(dest)


def works_afterwards():
    """No job runs, and another can."""
    assert not job.is_running()
    with pgas.init():
        ring_works()
