"""Mistakes of programs over a NIC transport, and their messages."""

import jobs
import pytest

job = jobs.job

INIT = """
pgas.init()
dest = pgas.zeros(64, np.int32)

@pgas.jit
def p_on(dest, qp):
    pgas.p(dest, cuda.threadIdx.x, 1, 0, qp)

@pgas.jit
def put_on(dest, qp):
    pgas.put(dest, dest, 0, 4, qp)

@pgas.jit
def g_on(dest, qp):
    dest[0] = pgas.g(dest, 1, 0, qp)

@pgas.jit
def raises_in_between(dest):
    t = cuda.threadIdx.x
    for i in range(20):
        pgas.p(dest, 2 * (t % 32), i, 0, 2)
        if t == 33 and i == 3 and cuda.blockIdx.x == cuda.gridDim.x - 1:
            raise KeyError("the kernel's own")
"""


@pytest.mark.parametrize(("transport", "kernel", "qp"), [("ibgda", "p", 3), ("ibrc", "put", -1), ("ibgda", "g", 77)])
def test_queue_pair_that_does_not_exist(job, transport, kernel, qp):
    """Valid numbers are 0 (by cta, sm or warp) and 1 to PGAS_IBGDA_NUM_RC_PER_PE."""
    text = f"""
for qp in (0, 1, 2):
    p_on[1, 4](dest, qp), put_on[1, 1](dest, qp), g_on[1, 1](dest, qp)
pgas.barrier_all()
say(int(dest.copy_to_host().sum()))
attempt({kernel}_on[1, 4], dest, {qp})
"""
    ended = job(INIT + text, PGAS_TRANSPORT=transport, npes=1)
    assert ended.out.startswith("4\n"), ended
    (said,) = ended.lines(0)
    way = "from" if kernel == "g" else "to"
    assert f": {kernel} {way} PE 0: qp must be 1 to 2 (PGAS_IBGDA_NUM_RC_PER_PE), or 0 for the one that" in said, ended
    assert said.endswith(f"not {qp}"), ended


@pytest.mark.parametrize("transport", ["ibgda", "ibrc"])
def test_exception_of_a_kernel_while_it_holds_a_queue(job, transport):
    """In the simulator a kernel can end anywhere. The next call reports it, and does not wait for WQEs that are never submitted."""
    text = "attempt(raises_in_between[4, 64], dest)\nattempt(pgas.barrier_all)\nsys.exit(1)\n"
    if transport == "ibgda":  # few places where threads yield between reserve and submit
        text = (
            "from pgas.job import runtime\nfrom pgas.kernels import layout\nhead = layout.RECORDS + layout.RESV_HEAD\n"
            "runtime.current().nic._store(head, runtime.current().nic._load(head) + 1)\n" + text.replace("[4, 64]", "[1, 64]")
        )
    ended = job(INIT + text, PGAS_TRANSPORT=transport, npes=1)
    said = ended.lines(0)
    assert said[0].startswith("KeyError: "), ended
    assert "a kernel ended with KeyError between reserving a place in a queue and posting it" in said[1], ended
    assert ended.seconds < jobs.SOON


def test_exception_of_a_kernel_that_holds_nothing(job):
    text = """
@pgas.jit
def raises(dest):
    pgas.p(dest, 0, 5, 0)
    cuda.syncthreads()
    raise KeyError("at leisure")
attempt(raises[1, 1], dest)
pgas.barrier_all()
say(int(dest.copy_to_host()[0]))
"""
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda", npes=1)
    assert ended.out.endswith("5\n"), ended
