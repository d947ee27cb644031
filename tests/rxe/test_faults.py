"""Faults of a real RDMA device: each job ends within seconds, every PE has one error that names the fault, and nothing is left.

In the guest (make check-rxe): rxe0 is on the loopback interface, rxe1 on one whose link is taken down here.
"""

import os
import re
import time

import jobs
import pytest

from rxe.link import DEVICE as ON_LINK
from rxe.link import INTERFACE, link_down

DEVICES = ("rxe0", ON_LINK)
pytestmark = [
    pytest.mark.skipif(
        not all(os.path.exists(f"/sys/class/infiniband/{name}") for name in DEVICES),
        reason="capability missing: the guest's RDMA devices (make check-rxe)",
    ),
    pytest.mark.timeout(2 * int(os.environ.get("TEST_TIMEOUT", "90"))),
]

job = jobs.job
holds = jobs.holds

#: Time limit of a job in seconds. Emulated, it takes ten to start, and more on a busy machine.
SECONDS = int(os.environ.get("TEST_TIMEOUT", "90"))

#: Unacknowledged packets are an error after 4.096 us * 2^14 * 4, a quarter of a second.
OVER = {"PGAS_TRANSPORT": "ibrc", "PGAS_IB_TIMEOUT": "14", "PGAS_IB_RETRY_COUNT": "3"}

INIT = """
from pgas.job import runtime
from pgas.transports.ibrc import tables, work_requests
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
right = (me + 1) % n
nic = runtime.current().nic
dest, source = pgas.zeros(1 << 16, np.int32), pgas.full(1 << 16, me, np.int32)
sig = pgas.zeros(1, np.uint64)
pgas.barrier_all()

@pgas.jit
def put(dest, source, pe):
    pgas.put(dest, source, pe)

@pgas.jit
def put_for_long(dest, source, pe):  # a gigabyte; after an error operations return at once
    for i in range(4000):
        pgas.put(dest, source, pe)

@pgas.jit
def signal(sig, pe):
    pgas.signal_op(sig, 0, 1, pgas.SIGNAL_SET, pe)

@pgas.jit
def add(dest, pe):
    pgas.atomic_add(dest, 0, 1, pe)
    pgas.quiet()

@pgas.jit
def store(dest, pe):
    pgas.p(dest, 1, 5, pe)
    pgas.barrier_all()

def end():
    for array in (sig, source, dest):
        pgas.free(array)
    pgas.finalize()
"""


@pytest.fixture
def run(job):
    """Return run(text, device, ...), which runs a job over a device."""
    return lambda text, device="rxe0", **options: job(text, seconds=SECONDS, PGAS_HCA=device, **{**OVER, **options})


def test_no_such_device(run):
    ended = run("attempt(pgas.init)\n", "mlx5_7")
    wanted = "PGAS_HCA=mlx5_7: this machine has no such device; RDMA devices here: rxe0 (port 1 ACTIVE), rxe1 (port 1 ACTIVE)"
    assert ended.out.count(wanted) == 2, ended


def test_no_such_port(run):
    ended = run("attempt(pgas.init)\n", "rxe0:2", npes=1)
    assert "PGAS_HCA=rxe0:2: rxe0 has no such port; RDMA devices here: rxe0 (port 1 ACTIVE)" in ended.only_line(0), ended


def test_port_down(run):
    with link_down():
        ended = run("attempt(pgas.init)\n", ON_LINK, npes=1)
    assert f"PGAS_HCA={ON_LINK}: port 1 is DOWN (physical state Disabled)" in ended.only_line(0), ended


@pytest.mark.parametrize("index", ["9", "200"])
def test_no_such_gid(run, index):
    ended = run("attempt(pgas.init)\n", npes=1, PGAS_IB_GID_INDEX=index)
    assert f"rxe0:1: PGAS_IB_GID_INDEX={index}: no such GID; GIDs in use on port 1: 0 (" in ended.only_line(0), ended
    assert "1 (127.0.0.1, RoCE v2)" in ended.only_line(0), ended


#: Give up CAP_IPC_LOCK, which lifts the limit, and allow a megabyte.
LITTLE_MEMORY = """
import ctypes, resource
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
class Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]
header, data = Header(0x20080522, 0), (Data * 2)()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capget(ctypes.byref(header), data) == 0
data[0].effective &= ~(1 << 14)
assert libc.capset(ctypes.byref(header), data) == 0
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
attempt(pgas.init)
"""


def test_too_little_memory_may_be_locked(run):
    ended = run(LITTLE_MEMORY)
    nbytes = int(re.search(r"(\d+) bytes of the symmetric heap", ended.out)[1])
    refused = f"RDMA device rxe0:1 does not register {nbytes} bytes of the symmetric heap (PGAS_SYMMETRIC_SIZE) by address: "
    said = [line for line in ended.out.splitlines() if f"PE 0: {refused}" in line and f"PE 1: {refused}" in line]
    assert len(said) == 2, ended  # each PE, of both
    limit = f"this process may lock 1024 KiB of memory, this alone takes {nbytes >> 10} KiB: ulimit -l {nbytes >> 9} or more"
    assert limit in ended.out, ended


WITHOUT_ATOMICS = """
from dataclasses import replace
from pgas.transports.verbs import device
real = device.OpenDevice.query
device.OpenDevice.query = lambda self: replace(real(self), atomics=False)
"""


@pytest.mark.parametrize(("what", "named"), [("signal[1, 1](sig, right)", "SIGNAL_SET"), ("add[1, 1](dest, right)", "ADD")])
def test_device_without_atomics(run, what, named):
    """Operations that need no atomic work."""
    text = f"""
pgas.launch(store, 1, 1, (dest, right))
say("stored", int(dest[1]))
def both():
    {what}
    pgas.barrier_all()
attempt(both)
"""
    ended = run(WITHOUT_ATOMICS + INIT + text, npes=1)
    assert "stored 5" in ended.out, ended
    said = ended.only_line(0)
    assert f"{named} needs an atomic, and RDMA device PE 0's rxe0:1 has none (atomic_cap is ATOMIC_NONE)" in said, ended
    assert "or PGAS_HCA=softhca" in said, ended


def test_bad_key(run):
    """The peer's device refuses the key. One PE gets an error that describes the work request, and the other ends with it."""
    text = """
if me == 0:
    nic._tables[right][0, work_requests.PIECE_KEY // 8] ^= 0x100
    attempt(put[1, 1], dest, source, right)
    attempt(pgas.barrier_all)
    sys.exit(1)
wait("barrier", None)
"""
    ended = run(INIT + text)
    said = ended.lines(0)[0] if "no error" not in ended.lines(0)[0] else ended.lines(0)[1]
    assert said.startswith("CompletionError: "), ended
    for part in (
        "queue pair 1 to PE 1 (QP 0x", "on rxe0:1 failed at work request ", "RDMA_WRITE 262144 bytes, remote address 0x", "rkey 0x",
        "IBV_WC_REM_ACCESS_ERR (10), vendor_err 0x", "the queue pair is in ERR",
    ):  # fmt: skip
        assert part in said, (part, ended)
    assert ended.status != 0, ended


def test_a_peer_that_does_not_answer(run):
    """The peer lives, but its queue pairs are gone: the retries are exceeded."""
    text = """
if me == 1:
    nic.stop()
    for qp in nic.qps:
        qp.destroy()
pgas.allgather_object(me)
if me == 0:
    attempt(put[1, 1], dest, source, right)
    sys.exit(1)
pgas.allgather_object("waits until the job is over")
"""
    ended = run(INIT + text)
    assert any("IBV_WC_RETRY_EXC_ERR (12)" in line and "PE 1 does not answer" in line for line in ended.lines(0)), ended
    assert ended.status != 0, ended


def test_a_peer_killed_in_mid_transfer(run):
    """The other PE names the dead one. A shell around each PE hides the death from mpirun, which would end the job first."""
    text = """
def die():
    say("killed at", time.time())
    os.kill(os.getpid(), 9)
if me == 1:
    later(1.5, die)
attempt(put_for_long[1, 1], dest, source, right)
attempt(pgas.barrier_all)
sys.exit(1)
"""
    ended = run(INIT + text, wrapper=("/bin/sh", "-c", '"$0" "$@"; sleep 60'))
    seconds = time.time() - float(re.search(r"killed at ([0-9.]+)", ended.out)[1])
    holds(ended, "PE 1 (process ", ": the job cannot continue")
    assert seconds < 30, (seconds, ended)


def test_a_link_that_goes_down(run):
    """During a transfer, on one machine's only interface: both PEs get the error that the port is down.

    If nothing was in flight at that moment, rxe retries for ever without counting and completes nothing: PGAS_TIMEOUT ends the job.
    """
    text = f"""
import subprocess
if me == 0:
    later(1.5, subprocess.run, ["ip", "link", "set", "{INTERFACE}", "down"])
attempt(put_for_long[1, 1], dest, source, right)
attempt(pgas.barrier_all)
sys.exit(1)
"""
    try:
        ended = run(INIT + text, ON_LINK, PGAS_TIMEOUT="20")
    finally:
        with link_down():  # it comes up again at the end
            pass
    assert f"port {ON_LINK}:1 is down" in ended.out, ended


def test_pes_on_different_machines(run):
    """PEs claim different machines, so neither watches the other's process, and everything works."""
    text = """
from pgas.job.bootstrap import processes
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
processes.node_name = lambda: f"machine{rank}/boot/pid"
"""
    work = """
put[1, 1](dest, source, right)
signal[1, 1](sig, right)
pgas.barrier_all()
say("got", set(np.asarray(dest).tolist()), int(sig[0]), "watched", len(runtime.current().health.detector._watch._deaths._pidfds))
end()
"""
    ended = run(text + INIT + work)
    assert ended.status == 0, ended
    assert {"got {0} 1 watched 1", "got {1} 1 watched 1"} <= set(ended.out.splitlines()), ended
