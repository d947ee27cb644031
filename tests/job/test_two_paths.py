"""Jobs with two paths: refusals, paths in hang reports, PEs that are not numbered by machine, PGAS_AMO."""

import socket

import jobs
import pytest
from jobs import INIT
from test_hang_report import has, reports

job = jobs.job

TWO = {"PGAS_TRANSPORT": "p2p,ibgda", "PGAS_PES_PER_NODE": "2,1"}

#: A program that starts several jobs, with different variables for all PEs or for this one.
ATTEMPTS = """
from types import SimpleNamespace
from pgas.job.paths import hca
from pgas.transports.selection import Choice

me, own = launched_rank(), pgas.init
hca.devices.devices = lambda: []

def start(one=None, **every):
    os.environ.update(every | ((one or {}) if me == 1 else {}))
    attempt(own)
    for name in every | (one or {}):
        os.environ.pop(name, None)
"""

CHOICES = "must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc"

#: Variables, and the refusal. PE 1 may have other variables, and only PE 0 may have a NIC.
REFUSED = [
    ("start(PGAS_TRANSPORT='p2p,p2p')", f"ValueError: PGAS_TRANSPORT=p2p,p2p: {CHOICES}"),
    ("start(PGAS_TRANSPORT='p2p,tcp')", f"ValueError: PGAS_TRANSPORT=p2p,tcp: {CHOICES}"),
    ("start(PGAS_TRANSPORT='ibgda,ibrc')", f"ValueError: PGAS_TRANSPORT=ibgda,ibrc: {CHOICES}"),
    ("start(PGAS_AMO='sm')", "ValueError: PGAS_AMO=sm: must be one of nic, peer"),
    (
        "start(PGAS_PES_PER_NODE='two')",
        "ValueError: PGAS_PES_PER_NODE=two: must be a number of PEs from 1 to 9999, several of them separated by commas, or empty",
    ),
    (
        "start(PGAS_PES_PER_NODE='2')",
        "ValueError: PGAS_PES_PER_NODE=2: 3 PEs are not a multiple of 2 (a list, such as 2,1, gives the number of PEs on each node)",
    ),
    (
        "start(PGAS_PES_PER_NODE='2,2')",
        "ValueError: PGAS_PES_PER_NODE=2,2: 3 PEs are not 4 (a list, such as 2,1, gives the number of PEs on each node)",
    ),
    (
        "start({'PGAS_TRANSPORT': 'p2p'}, PGAS_TRANSPORT='p2p,ibrc')",
        "BootstrapError: PEs differ in PGAS_TRANSPORT: PE 0 has p2p,ibrc, PE 1 has p2p; it must be the same on all PEs",
    ),
    (
        "start({'PGAS_PES_PER_NODE': '2,1'})",
        "BootstrapError: PEs differ in PGAS_PES_PER_NODE: PE 0 has nothing, PE 1 has 2,1; it must be the same on all PEs",
    ),
    (
        "start(PGAS_HCA='mlx5_9', PGAS_PES_PER_NODE='2,1')",
        "TransportError: PE 0 (HOST) and PE 2 (HOST) are on different nodes according to PGAS_PES_PER_NODE=2,1: p2p connects only PEs on "
        "one node; for ibgda and ibrc PE 0 has no NIC (PGAS_HCA=mlx5_9: this machine has no such device; RDMA devices here: none)",
    ),
    (
        "start({'PGAS_HCA': 'mlx5_9'}, PGAS_PES_PER_NODE='2,1')",
        "TransportError: PE 0 (HOST) and PE 2 (HOST) are on different nodes according to PGAS_PES_PER_NODE=2,1: p2p connects only PEs on "
        "one node; for ibgda and ibrc PE 1 has no NIC (PGAS_HCA=mlx5_9: this machine has no such device; RDMA devices here: none)",
    ),
    (
        "start(PGAS_TRANSPORT='p2p', PGAS_PES_PER_NODE='2,1')",
        "TransportError: PE 0 (HOST) and PE 2 (HOST) are on different nodes according to PGAS_PES_PER_NODE=2,1: p2p connects only PEs on "
        "one node; with NICs: PGAS_TRANSPORT=p2p,ibgda or p2p,ibrc",
    ),
    (
        "if me == 0:\n"
        "    hca.choose = lambda *args: Choice(SimpleNamespace(name='mlx5_0'), SimpleNamespace(number=1), 'it is near')\n"
        "start(PGAS_TRANSPORT='p2p,ibrc', PGAS_PES_PER_NODE='2,1')",
        "TransportError: PE 1 uses the software NIC (kernels run in the simulator), PE 0 mlx5_0:1 (it is near): either all PEs must use an "
        "RDMA device, or none (PGAS_HCA)",
    ),
]


def test_refusals_are_one_sentence_on_every_pe(job):
    ended = job(ATTEMPTS + "\n".join(call for call, _ in REFUSED) + "\n", npes=3)
    host = socket.gethostname()
    for pe in range(3):
        for said, (call, wanted) in zip(ended.lines(pe), REFUSED, strict=True):
            assert said == wanted.replace("HOST", host), (pe, call, ended)
    assert "Traceback" not in ended.err, ended


@pytest.mark.slow
def test_hang_reports_name_the_path_of_what_is_awaited(job):
    """PE 0 waits for a signal, PE 1 for its WQE on a paused card, PE 2 for far PEs; a report finds each in its wait, or after its error."""
    text = """
from pgas.job import runtime

@pgas.jit
def meets():
    pgas.sync_all()

@pgas.jit
def adds(word):
    pgas.atomic_fetch_add(word, 0, 0, 2)

meets[1, 1]()
adds[1, 1](word)
pgas.barrier_all()
if me == 1:
    runtime.current().nic.adapter.pause()
pgas.barrier_all()
attempt([waits, adds, meets][me][1, 1], *[(word,), (word,), ()][me])
time.sleep(3)
sys.exit(1)
"""
    ended = job(INIT + text, npes=3, PGAS_TIMEOUT="3", **TWO)
    found = reports(ended)
    assert found.keys() == {0, 1, 2}, ended
    for lines in found.values():
        has(lines, r"  process \d+ on \S+, transport p2p,ibgda", ended)
    has(found[0], r".* signal_wait_until wait.*[:;] any PE may write it: PEs 0-1 over p2p; PE 2 over ibgda", ended)
    has(found[1], r".* atomic_fetch_add wait.* of queue pair \d to PE 2 .*[:;] the NIC, over ibgda, completes it", ended)
    has(found[2], r".* sync_all wait.* the flag of PE \d in the barrier .*[:;] PE \d writes it, over ibgda, when it comes there", ended)


def test_ptr_of_a_far_pe_in_a_kernel(job):
    text = """
@pgas.jit
def store(word, pe):
    pgas.ptr(word, pe)[0] = 1

attempt(store[1, 1], word, (me + 1) % n)
"""
    ended = job(INIT + text, npes=3, **TWO)
    assert ended.only_line(0) == "no error", ended
    why = "is not mapped here (on different nodes according to PGAS_PES_PER_NODE=2,1); use put and get"
    assert ended.only_line(1).endswith(f"PE 1, block 0, thread 0: ptr: the memory of PE 2 {why}"), ended
    assert ended.only_line(2).endswith(f"PE 2, block 0, thread 0: ptr: the memory of PE 0 {why}"), ended


#: PEs take turns among two machines, as mpirun --map-by node numbers them.
IN_TURN = """
from pgas.job import runtime
from pgas.job.paths import topology
topology.numbers_for_tests = lambda per_node, n_pes: [pe % 2 for pe in range(n_pes)]
"""

TO_ALL = """
@pgas.jit
def to_all(dest, source, word, me, n):
    for pe in range(n):
        pgas.p(dest, me, source[0], pe)
        pgas.put_signal(dest[n + me : n + me + 1], source, word, 0, 1, pgas.SIGNAL_ADD, pe)
    pgas.barrier_all()
    for pe in range(n):
        pgas.atomic_add(dest, 2 * n, pgas.g(source, 0, pe), me)
    pgas.barrier_all()

dest, source = pgas.zeros(2 * n + 1, np.int64), pgas.full(1, me + 1, np.int64)
to_all[1, 1](dest, source, word, me, n)
pgas.barrier_all()
say(f"PE {me}:", dest.copy_to_host().tolist(), word.copy_to_host().tolist(), runtime.current().near_pes, pgas.TEAM_NODE.pes)
"""


@pytest.mark.parametrize("transport", ["p2p,ibrc", jobs.also("p2p,ibgda")])
def test_numbers_of_a_machine_need_not_be_consecutive(job, transport):
    ended = job(IN_TURN + INIT + TO_ALL, npes=3, PGAS_TRANSPORT=transport)
    for pe, near in enumerate(("(0, 2)", "range(1, 2)", "(0, 2)")):
        assert ended.only_line(pe) == f"[1, 2, 3, 1, 2, 3, 6] [3] {near} {(0, 2) if pe != 1 else (1,)}", ended


def test_auto_makes_two_paths_of_what_counts_as_two_machines(job):
    text = "from pgas.job import runtime\nsay(runtime.current().transport)\n"
    ended = job(INIT + text, npes=3, PGAS_PES_PER_NODE="2,1")
    assert ended.out == "p2p,ibgda\n" * 3, ended


#: Large operands cross a NIC once for each machine, in pieces, and each round uses staging again.
HIERARCHICAL = """
@pgas.jit
def large(team, dests, source, root):
    pgas.broadcast_block(team, dests[0, : source.size], source, root)
    pgas.reduce_block(team, dests[1, : source.size], source, pgas.SUM)
    pgas.fcollect_block(team, dests[2], source)
    if source.size < 1000:
        pgas.alltoall_block(team, dests[3, : source.size], source)
        pgas.reducescatter_block(team, dests[4, : source.size // pgas.team_n_pes(team)], source, pgas.SUM)
        pgas.inscan_block(team, dests[5, : source.size], source, pgas.MAX)

def give(size, member):
    return np.random.default_rng([size, member]).integers(-1000, 1000, size)

wrong = []
backwards = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
for team, size, root in ((pgas.TEAM_WORLD, 100 * n, n - 1), (backwards, 100 * n, 1), (backwards, 12 * n, 0), (pgas.TEAM_WORLD, 40_000, 1)):
    given = [give(size, member) for member in range(n)]
    source, dests = pgas.array(given[team.my_pe]), pgas.zeros((6, n * size), np.int64)
    pgas.barrier_all()
    large[1, 64](team, dests, source, root)
    found, each, i = dests.copy_to_host(), size // n, team.my_pe
    part = slice(each * i, each * (i + 1))
    expected = {
        "broadcast": given[root], "reduce": sum(given), "fcollect": np.concatenate(given),
        "alltoall": np.concatenate([g[part] for g in given]), "reducescatter": sum(given)[part], "inscan": np.max(given[: i + 1], axis=0),
    }
    expected = dict(list(expected.items())[: 6 if size < 1000 else 3])
    for (name, values), row in zip(expected.items(), found):
        if not np.array_equal(row, np.concatenate([values, np.zeros(n * size - values.size, np.int64)])):
            wrong.append((name, team, size))
    pgas.barrier_all()
say(f"PE {me}:", wrong)
"""


@pytest.mark.parametrize("transport", ["p2p,ibgda", jobs.also("p2p,ibrc")])
def test_large_operands_between_machines(job, transport):
    """On two machines of two PEs. 40,000 elements are several chunks of a broadcast, and pieces of a ring."""
    ended = job(INIT + HIERARCHICAL, npes=4, PGAS_TRANSPORT=transport, PGAS_PES_PER_NODE="2", PGAS_LL_BYTES="64")
    for pe in range(4):
        assert ended.only_line(pe) == "[]", ended
