"""Waits of the NIC transports' functions, and that nothing is posted after a refusal; in the simulator, without a card or a proxy.

One thread calls the function. Another one stands in for the proxy: when no other thread can go on, it completes the requests.
"""

import os

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numpy as np
import posting
import pytest
from numba import cuda
from numba.cuda import types

from pgas.kernels import layout, refusals, state
from pgas.kernels.codes import Update
from pgas.kernels.compiler import cpu
from pgas.kernels.paths import ibgda, ibrc
from pgas.kernels.scope import THREAD
from pgas.sass import CONSTANTS
from pgas.sim import engine

engine.install()
pytestmark = pytest.mark.skipif(not hasattr(cuda, "simulator"), reason="needs NUMBA_ENABLE_CUDASIM=1")

CONTROL, BEFORE = 0x6035_0000_0000, 4
TO, FROM, PE, SIZE = posting.DEST, posting.SOURCE, posting.PE, posting.NBYTES
ELSEWHERE = 0x7000_0000_0000  #: neither on the heap nor registered

#: By name: calls of a transport's functions that move data of local memory, given the local address.
COPIES = {
    "put": lambda t, local: t.put("put", THREAD, 4, nbi=False)(TO, local, SIZE, PE, 0),
    "put_nbi": lambda t, local: t.put("put_nbi", THREAD, 4, nbi=True)(TO, local, SIZE, PE, 1),
    "get": lambda t, local: t.get("get", THREAD, 4, nbi=False)(local, TO, SIZE, PE, 0),
    "get_nbi": lambda t, local: t.get("get_nbi", THREAD, 4, nbi=True)(local, TO, SIZE, PE, 1),
    "iput": lambda t, local: t.strided("iput", THREAD, 4, 4, get=False)(TO, 8, local, 4, 3, PE),
    "iput, all at once": lambda t, local: t.strided("iput", THREAD, 4, 4, get=False)(TO, 4, local, 4, 3, PE),
    "iput, second in reach": lambda t, local: t.strided("iput", THREAD, 4, 4, get=False)(TO, 8, local, FROM - local, 2, PE),
    "iget": lambda t, local: t.strided("iget", THREAD, 4, 4, get=True)(TO, 4, local, 8, 3, PE),
    "put_signal": lambda t, local: t.put_signal("put_signal", THREAD, 4, nbi=False)(TO, local, SIZE, posting.WORD, 1, False, PE),
    "put_signal_nbi": lambda t, local: t.put_signal("put_signal_nbi", THREAD, 4, nbi=True)(TO, local, SIZE, posting.WORD, 1, True, PE),
}

#: Requests of those that make several.
_SEVERAL = {"iput": 3, "iput, second in reach": 2, "iget": 3}

#: By name: calls that return when their requests are done, their number of requests, and for how many of 4 other requests they also wait.
WAITS = {name: (copy, _SEVERAL.get(name, 1)) for name, copy in COPIES.items() if "nbi" not in name} | {
    "g": (lambda t, local: t.g(types.float32)(TO, np.zeros(1, np.float32), PE, 0), 1),
    "atomic_fetch_add": (
        lambda t, local: t.atomic("atomic_fetch_add", Update.ADD, types.uint64, fetch=True)(TO, np.zeros(1, np.uint64), 1, 0, PE),
        1,
    ),
    "quiet": (lambda t, local: t.quiet(), 0),
    "quiet_pe": (lambda t, local: t.quiet_pe(PE), 0),
    "fence": (lambda t, local: t.fence(), 0),
    "flush": (lambda t, local: t.flush(), 0),
}  # fmt: skip


class Job(posting.Job):
    """posting.Job with a proxy's ring, in which BEFORE requests were posted and all but one of them are done."""

    def __init__(self):
        super().__init__("put")
        self.ring_of_proxy = self.memory.region(CONTROL, layout.RING + CONSTANTS["ibrc"].ring * layout.REQUEST_SIZE)
        for address, value in {
            layout.CONTROL: CONTROL,
            layout.RING_HEAD: BEFORE,
            layout.RING_SEEN: BEFORE - 1,
            CONTROL: BEFORE - 1,
        }.items():
            self.memory.store(address, value, 8)

    def head(self):
        return self.memory.load(layout.RING_HEAD, 8)

    def complete_one(self):
        self.memory.store(CONTROL + layout.COMPLETED, self.memory.load(CONTROL + layout.COMPLETED, 8) + 1, 8)


@pytest.fixture
def job(monkeypatch):
    job = Job()
    posting.freeze(monkeypatch, CONSTANTS["ibrc"])
    monkeypatch.setattr(cpu, "mem", job.memory)
    monkeypatch.setattr(cpu, "_read_only", {})
    return job


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_ends_when_the_last_request_is_done(name, job):
    call, requests = WAITS[name]
    said = []

    @cuda.jit
    def kernel():
        if cuda.threadIdx.x == 0:
            call(ibrc, FROM)
            said.append("returned")
        else:
            for done in range(BEFORE, BEFORE + requests + 1):
                for _ in range(10):
                    engine.yield_()
                said.append(done)
                job.complete_one()

    kernel[1, 2]()
    assert job.head() == BEFORE + requests
    assert said == [*range(BEFORE, BEFORE + requests + 1), "returned"]


@pytest.mark.parametrize("path", [ibgda, ibrc], ids=["ibgda", "ibrc"])
@pytest.mark.parametrize("name", COPIES)
def test_nothing_is_posted_for_unreachable_memory(name, path, job):
    """Neither data nor a signal; the job is unusable afterwards."""
    before = job.memory.load(job.record + layout.RESV_HEAD, 8), bytes(job.ring), bytes(job.ring_of_proxy)
    copy = COPIES[name]

    @cuda.jit
    def kernel():
        copy(path, ELSEWHERE)

    kernel[1, 1]()
    assert job.memory.load(layout.POISON, 8) == state.FAILED
    assert job.memory.load(layout.ERROR, 8) == refusals.kind_of("not registered")
    assert job.head() == BEFORE
    assert (job.memory.load(job.record + layout.RESV_HEAD, 8), bytes(job.ring), bytes(job.ring_of_proxy)) == before
