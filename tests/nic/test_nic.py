"""Errors of a NIC: each program ends within seconds with one message that names the fault, and leaves nothing. And queues that wrap."""

import re

import jobs
import pytest

from pgas.transports.mlx5.cqe import Syndrome

job = jobs.job
holds = jobs.holds

over_both = pytest.mark.parametrize("transport", ["ibgda", "ibrc"])

INIT = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
right = (me + 1) % n
dest, source = pgas.zeros(64, np.int32), pgas.full(64, me, np.int32)
pgas.barrier_all()

@pgas.jit
def put(dest, source, pe):
    pgas.put_block(dest, source, pe)

@pgas.jit
def p_and_quiet(dest, pe):
    pgas.p(dest, 2 * cuda.threadIdx.x, 1, pe)
    pgas.quiet()
"""


@pytest.mark.parametrize(
    "syndrome",
    [Syndrome.LOCAL_PROT_ERR, jobs.also(Syndrome.REMOTE_ACCESS_ERR), jobs.also(Syndrome.TRANSPORT_RETRY_EXC_ERR)],
    ids=lambda s: s.name,
)
def test_error_cqe(job, syndrome):
    """The first WQE fails. Its PE gets an error that describes the WQE, and the other PE ends with it."""
    text = "attempt(put[1, 32], dest, source, right) if me == 0 else wait('barrier', None)\nattempt(pgas.barrier_all)\nsys.exit(1)\n"
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda", PGAS_SOFTHCA_FAULTS=f"fail=1:{syndrome:#x}")
    said = ended.lines(0)
    assert len(said) == 2, ended
    assert said[0].startswith("CompletionError: "), ended
    for part in ("put_block: queue pair 1 to PE 1 (QP 0x", "failed at WQE 0", syndrome.text, "the first error of this queue pair"):
        assert part in said[0], ended
    assert re.search(r"RDMA_WRITE wqe_idx 0x0000 .* 256 bytes at 0x[0-9a-f]+ lkey", said[0]), ended
    assert said[1].startswith("CompletionError: "), ended
    assert ended.seconds < jobs.SOON


#: Replace the rkey of the peer's heap where WQEs are built: in the state page of kernels, or in the proxy thread's rows.
FORGE = """
from pgas.job import runtime
from pgas.kernels import layout
from pgas.transports.ibrc import tables, wqes
from pgas.transports.ibrc.nic import ProxiedNIC
def forge(peer):
    nic = runtime.current().nic
    if isinstance(nic, ProxiedNIC):
        for number in range(peer * nic._num, (peer + 1) * nic._num):
            nic._own[(tables.END + number * tables.ROW + wqes.HEAP_KEY) // 8] ^= 0x100
    else:
        key = layout.KEYS + layout.KEY_SIZE * peer
        nic._store(key, nic._load(key) ^ 0x100)
"""


@pytest.mark.slow
def test_quiet_of_more_than_64_queue_pairs(job):
    """The bitmap of used queue pairs takes several words. The card is paused until quiet, or quiet_pe, waits."""
    text = """
from pgas.job import runtime
nic = runtime.current().nic

@pgas.jit
def put_on(dest, source, pe, qp):
    pgas.put_nbi(dest, source, pe, None, qp)

@pgas.jit
def completes(pe):
    if pe < 0:
        pgas.quiet()
    else:
        pgas.quiet_pe(pe)

def resume():
    resumed.append(True)
    nic.adapter.resume()

if me == 0:
    for pe, qp, which in ((0, 3, -1), (1, 60, -1), (0, 3, 0), (1, 60, 1), (1, 2, 1)):
        resumed = []
        nic.adapter.pause()
        put_on[1, 1](dest, source, pe, qp)
        later(0.5, resume)
        completes[1, 1](which)
        say(pe, qp, which, resumed)
pgas.barrier_all()
"""
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda", PGAS_IBGDA_NUM_RC_PER_PE="60", PGAS_QP_DEPTH="128")
    assert ended.status == 0, ended
    assert ended.out.splitlines() == ["0 3 -1 [True]", "1 60 -1 [True]", "0 3 0 [True]", "1 60 1 [True]", "1 2 1 [True]"], ended


@over_both
def test_forged_key(job, transport):
    """The card refuses it, the job gets an error, and the heap is unchanged."""
    text = """
def put_and_synchronize():
    put[1, 32](dest, source, right)
    pgas.synchronize()

def told(what):
    while not os.path.exists(sys.argv[0] + what):
        time.sleep(0.01)

if me == 0:
    forge(right)
    attempt(put_and_synchronize)
    open(sys.argv[0] + ".put", "w").close()
    told(".seen")
    sys.exit(1)
told(".put")
say("untouched", not dest.copy_to_host().any())
open(sys.argv[0] + ".seen", "w").close()
wait("barrier", None)
"""
    ended = job(INIT + FORGE + text, PGAS_TRANSPORT=transport)
    assert "CompletionError: " in ended.lines(0)[0], ended
    assert "remote access error (0x13)" in ended.lines(0)[0], ended
    holds(ended, "untouched True")


@over_both
def test_local_operand_off_the_heap(job, transport):
    ended = job(INIT + "attempt(put[1, 32], dest, np.zeros(64, np.int32), right)\n", PGAS_TRANSPORT=transport, npes=1)
    assert ": source, 256 bytes at address 0x" in ended.lines(0)[0], ended
    assert "is neither on the symmetric heap nor registered, so the NIC cannot access it; call pgas.register()" in ended.lines(0)[0], ended


@pytest.mark.slow  # test_faults_nic has the like under load
@over_both
def test_card_that_dies(job, transport):
    text = """
from pgas.job import runtime
card = runtime.current().nic.process
if me == 1:
    os.kill(card, signal.SIGKILL)
attempt(p_and_quiet[1, 32], dest, right)
wait("barrier", None)
"""
    ended = job(INIT + text, PGAS_TRANSPORT=transport)
    holds(ended, "the software NIC (process ", ": the job cannot continue")
    assert ended.seconds < jobs.SOON


@pytest.mark.slow  # test_faults_nic has the like under load
@over_both
def test_peer_that_dies(job, transport):
    ended = job(INIT + "if me == 1:\n    os.kill(os.getpid(), 9)\nwait('barrier', None)\n", PGAS_TRANSPORT=transport)
    holds(ended, "waiting")
    assert ended.seconds < jobs.SOON


FIRST_USE = """
from pgas.job import runtime

@pgas.jit
def first_use(dest, source, seen):
    i = cuda.threadIdx.x
    pgas.p(dest, 2 * i, i + 1, 0, 1)
    pgas.quiet()
    seen[i] = dest[2 * i]
    cuda.syncwarp()
    pgas.put_nbi(dest[64 + 2 * i : 65 + 2 * i], source[i : i + 1], 0, None, 2)
    pgas.quiet()
    seen[32 + i] = dest[64 + 2 * i]

dest, seen = pgas.zeros(128, np.int32), pgas.zeros(64, np.int32)
source = pgas.array(np.arange(1, 33, dtype=np.int32))
adapter = runtime.current().nic.adapter
adapter.pause()
later(0.5, adapter.resume)
first_use[1, 32](dest, source, seen)
for half in np.split(seen.copy_to_host(), 2):
    say("lanes that quiet did not hold:", *np.flatnonzero(half != np.arange(1, 33)))
for array in (source, seen, dest):
    pgas.free(array)
pgas.finalize()
"""


@over_both
def test_quiet_of_a_queue_pair_in_its_first_use(job, transport):
    """All lanes of a warp use it together, and each lane's quiet returns when its own WQE is complete."""
    ended = job("pgas.init()\n" + FIRST_USE, PGAS_TRANSPORT=transport, npes=1)
    assert ended.status == 0, ended
    assert ended.out.splitlines() == 2 * ["lanes that quiet did not hold:"], ended


#: Which thread uses which queue pair, and how many doorbells there are. Warps put 1, 2, 4 ... times, so a queue pair's count shows which
#: warps used it. Then pairs of lanes, in turns with other warps, put 256 times on one queue pair.
QUEUES = """
from pgas.job import runtime
from pgas.kernels import window
from pgas.kernels.compiler import ptx

registers, rings, store = set(), [], ptx.st_relaxed_sys_u64
def counted(at, value):
    if at in registers:
        rings.append(at)
    store(at, value)
ptx.st_relaxed_sys_u64 = counted  # the card sees the last of several rings only
window.SHARERS["sm"] = lambda: ptx.block_rank() // 2  # the simulator has one multiprocessor
pgas.init()

@pgas.jit
def put_by_warps(dest, source):
    warp = cuda.grid(1) // 32
    if cuda.grid(1) % 32 == 0:
        for _ in range(1 << warp):
            pgas.put_nbi(dest[warp : warp + 1], source[warp : warp + 1], 0)

@pgas.jit
def put_by_pairs(dest, source):
    at = cuda.threadIdx.x
    if at % 32 < 2:
        for _ in range(8):
            pgas.put_nbi(dest[at : at + 1], source[at : at + 1], 0, None, 1)

dest, source = pgas.zeros(512, np.int32), pgas.full(512, 7, np.int32)
nic = runtime.current().nic
put_by_warps[4, 64](dest, source)
pgas.barrier_all()
say("wqes", *(qp["wqes"] for qp in nic.adapter.counters()["qps"]))
say("by warps", (dest.copy_to_host()[:8] == 7).all())
registers.update(qp.uar.register_address for qp in nic.qps)
put_by_pairs[1, 512](dest, source)
pgas.barrier_all()
say("rings", len(rings), len(set(rings)))
say("by pairs", (dest.copy_to_host().reshape(16, 32)[:, :2] == 7).all())
pgas.free(source); pgas.free(dest); pgas.finalize()
"""


@pytest.mark.parametrize(
    ("num", "map_by", "batch", "fewest", "most"),
    [jobs.also(1, "cta", 1, 128, 128), (2, "sm", 64, 4, 20), jobs.also(3, "warp", 32, 8, 40), jobs.also(3, "cta", 1, 128, 128)],
)
def test_queue_pairs_of_threads_and_doorbells_of_batches(job, num, map_by, batch, fewest, most):
    """PGAS_IBGDA_NUM_RC_PER_PE, PGAS_IBGDA_RC_MAP_BY and PGAS_IBGDA_NUM_REQUESTS_IN_BATCH: 128 reservations of 2 WQEs each."""
    variables = {"NUM_RC_PER_PE": num, "RC_MAP_BY": map_by, "NUM_REQUESTS_IN_BATCH": batch}
    ended = job(QUEUES, PGAS_TRANSPORT="ibgda", npes=1, **{f"PGAS_IBGDA_{name}": str(value) for name, value in variables.items()})
    assert ended.status == 0, ended
    user = {"cta": lambda warp: warp // 2, "warp": lambda warp: warp, "sm": lambda warp: warp // 4}[map_by]
    wqes = [sum(1 << warp for warp in range(8) if user(warp) % num == i) for i in range(num)]
    assert f"wqes {' '.join(map(str, wqes))}\n" in ended.out, ended
    assert ended.out.count(" True") == 2, ended
    rings, registers = map(int, re.search(r"rings (\d+) (\d+)", ended.out).groups())
    assert fewest <= rings <= most, ended
    assert registers == 1, ended


@pytest.mark.slow
def test_hca_shows_the_card(job):
    text = """
import subprocess
put[1, 32](dest, source, right)
pgas.barrier_all()
if me == 0:
    print(subprocess.run([sys.executable, "-m", "pgas", "hca"], capture_output=True, text=True, check=True).stdout)
pgas.barrier_all()
pgas.free(source); pgas.free(dest); pgas.finalize()
"""
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda")
    assert ended.status == 0, ended
    cards = ended.out.split("software NIC pgas-hca-")[1:]  # other jobs may run here
    assert any(re.search(r"wqes 2, nbytes 512,", card) for card in cards), ended
    (card,) = [card for card in cards if "wqes 2, nbytes 512," in card]
    assert len(re.findall(r"^0x1[0-9a-f]+ +[01] +RTS +1024", card, re.MULTILINE)) == 8, card  # 2 PEs, 2 queue pairs to each of 2
    keys = re.findall(r"^0x[0-9a-f]+ +[01] +(LOCAL_WRITE\S*) ", card, re.MULTILINE)  # of the heap, and of what no peer may touch
    assert sorted(keys) == ["LOCAL_WRITE"] * 2 + ["LOCAL_WRITE,REMOTE_WRITE,REMOTE_READ,REMOTE_ATOMIC"] * 2, card
    assert len(re.findall(r"^[0-9]+ +[01] +0x1[0-9a-f]+$", card, re.MULTILINE)) == 8, card  # a UAR for each


def test_trace(job):
    """Bytes and descriptions of commands, WQEs and CQEs."""
    text = "put[1, 32](dest, source, right)\npgas.free(source); pgas.free(dest); pgas.finalize()\n"
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda", PGAS_TRACE="wqe,cqe,cmd", npes=1)
    assert ended.status == 0, ended
    for wanted in (
        "CREATE_QP",
        "RTR2RTS_QP",
        r"wqe PE 0 qpn 0x[0-9a-f]+ index 0: RDMA_WRITE .* 256 bytes at",
        r"cqe PE 0 qpn .*: 0x0 REQ wqe_counter 0x0000",
    ):
        assert re.search(wanted, ended.err), f"{wanted}\n{ended}"
    assert re.search(r"RDMA_WRITE[^\n]*\n000: 00000008 ", ended.err), ended  # opmod 0, index 0, opcode 8
    assert "DESTROY" not in ended.err, ended  # finalize() ends the card with all objects


def test_finalize_ends_the_card_before_any_pe_goes_on(job):
    """Otherwise, the ends of the PEs compete with it for the processors, and PE 0 waits seconds for it on a node of many PEs."""
    text = """
from pgas.job import runtime
card = runtime.current().nic.process
local = pgas.register(np.zeros(4096, np.int32))
os.kill(card, 0)
pgas.free(source); pgas.free(dest); pgas.finalize()
attempt(os.kill, card, 0)
"""
    ended = job(INIT + text, PGAS_TRANSPORT="ibgda", npes=3)
    assert ended.status == 0, ended
    for pe in range(3):
        assert ended.only_line(pe) == "ProcessLookupError: [Errno 3] No such process", ended


@pytest.mark.parametrize("first", [jobs.also(2**16 - 3), 2**32 - 3])
def test_indices_that_wrap(job, first):
    text = f"""
from pgas.transports.nic.adapter_nic import AdapterNIC
AdapterNIC.first_index = {first}
"""
    text += (
        INIT
        + """
@pgas.jit
def flood(dest, rounds, pe):
    for r in range(rounds):
        pgas.p(dest, 2 * cuda.threadIdx.x, r, pe)
        pgas.atomic_add(dest, 63, 1, pe)
    pgas.quiet()

flood[1, 31](dest, 40, right)
put[1, 32](dest[0:0], source[0:0], right)
pgas.barrier_all()
got = dest.copy_to_host()
say("right", (got[:62:2] == 39).all() and got[63] == 31 * 40 and not got[1:62:2].any())
from pgas.job import runtime
say("errors", sum(qp["errors"] for qp in runtime.current().nic.adapter.counters()["qps"]))
pgas.free(source); pgas.free(dest); pgas.finalize()
"""
    )
    ended = job(text, PGAS_TRANSPORT="ibgda", PGAS_QP_DEPTH="128")
    assert ended.out.count("right True") == 2, ended
    assert ended.out.count("errors 0") == 2, ended
    assert ended.status == 0, ended


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("PGAS_QP_DEPTH", "100", "PGAS_QP_DEPTH=100: must be a power of two from 128 to 32768"),
        ("PGAS_QP_DEPTH", "65536", "PGAS_QP_DEPTH=65536: must be a power of two from 128 to 32768"),
        ("PGAS_IBGDA_NUM_RC_PER_PE", "0", "PGAS_IBGDA_NUM_RC_PER_PE=0: must be auto or an integer from 1 to 64"),
        ("PGAS_IBGDA_RC_MAP_BY", "gpu", "PGAS_IBGDA_RC_MAP_BY=gpu: must be one of cta, sm, warp"),
        ("PGAS_TRANSPORT", "tcp", "PGAS_TRANSPORT=tcp: must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc"),
        ("PGAS_SOFTHCA_FAULTS", "bogus", "bogus"),
    ],
)
def test_bad_values(job, name, value, wanted):
    holds(job("pgas.init()\n", npes=1, **{"PGAS_TRANSPORT": "ibgda", name: value}), wanted)


@pytest.mark.parametrize("transport", ["ibgda", jobs.also("ibrc")])
def test_the_first_error_is_told(job, transport):
    """The 5th of 200 WQEs fails and the rest is flushed, but a collapsed CQ has only the last CQE. The job was started by a thread."""
    text = """
thread = threading.Thread(target=pgas.init)
thread.start()
thread.join()
from pgas.job import runtime
nic = runtime.current().nic
dest, done = pgas.zeros(200, np.int32), pgas.zeros(1, np.int32)

@pgas.jit
def flood(dest, pe):
    for i in range(200):
        pgas.p(dest, i, 1, pe)

def fail():
    try:
        pgas.barrier_all()
    except pgas.TransportError as error:
        say(type(error).__name__, error.pe, hex(error.qpn) in str(error), error.wqe_idx, hex(error.syndrome), error.vendor_err_synd)
        say(error)

nic.adapter.pause()
flood[1, 1](dest, 0)
later(0.5, nic.adapter.resume)
fail()
while nic.counts()["cqes"] < 200:
    time.sleep(0.01)
nic.adapter.diagnose = lambda qpn: None  # as a real card may
runtime.current().health.failure = None  # the first error, which is raised again
fail()
runtime.current().health.broken = True
"""
    ended = job(text, npes=1, PGAS_TRANSPORT=transport, PGAS_SOFTHCA_FAULTS="fail=5:0x13")
    first, text, last, flushed = ended.out.splitlines()
    assert first == "CompletionError 0 True 4 0x13 1", ended
    assert re.search(
        r"queue pair 1 to PE 0 \(QP 0x[0-9a-f]+\) failed at WQE 4: remote access error \(0x13\), vendor_err_synd 0x01, "
        r"an injected fault; RDMA_WRITE wqe_idx 0x0004 .* inline 01000000 \(the first error of this queue pair\)$",
        text,
    ), ended
    assert last == "CompletionError 0 True 199 0x5 0", ended
    assert re.search(
        r"failed at WQE 199: work request flushed \(0x05\), vendor_err_synd 0x00; RDMA_WRITE wqe_idx 0x00c7 .*"
        r" \(flushed after the first error, which softhca does not report\)$",
        flushed,
    ), ended


@pytest.mark.slow
def test_more_queue_pairs_than_the_card_has(job):
    """Those of all PEs count: 2 PEs make 6 each on a card that has 8."""
    text = """
from pgas.transports.mlx5 import commands
from pgas.transports.softhca.process import client

def command(self, inbox, outlen, real=client.SoftHCA.command):
    outbox, (kind, values) = real(self, inbox, outlen), commands.parse(inbox)
    if kind != commands.Command.QUERY_HCA_CAP or values["op_mod"] != 1:
        return outbox
    answer = commands.parse_output(kind, outbox, op_mod=1)
    return commands.build_output(kind, {"capability": {**answer["capability"], "log_max_qp": 3}}, op_mod=1)

client.SoftHCA.command = command
pgas.init()
"""
    ended = job(text, PGAS_TRANSPORT="ibgda", PGAS_IBGDA_NUM_RC_PER_PE="3")
    holds(ended, "TransportError: PE 0: PGAS_IBGDA_NUM_RC_PER_PE=3 is 12 queue pairs from 2 to 2 PEs, but softhca has 8")
