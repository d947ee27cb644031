"""Jobs on two machines of two PEs each, p2p inside a machine and ibrc over Soft-RoCE between them, by pgas.run on each or by mpirun.

In the guest: make check-rxe runs the first test, make check-rxe-machines all of them.
"""

import os
from pathlib import Path

import pytest

from rxe import nodes
from rxe.link import ip
from rxe.nodes import NODES, connected

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists("/sys/class/infiniband/rxe0"), reason="capability missing: the guest's RDMA devices (make check-rxe)"
    ),
    pytest.mark.timeout(1200),
]

ROOT = Path(__file__).parents[2]

#: Seconds of a wait. Emulated PEs take minutes to start.
TIMEOUT_S = 120
JOB = {
    "PGAS_TRANSPORT": "p2p,ibrc", "PGAS_SYMMETRIC_SIZE": "64M", "PGAS_QP_DEPTH": "128", "PGAS_IBRC_RING_SIZE": "64",
    "PGAS_TIMEOUT": str(TIMEOUT_S), "PGAS_IB_TIMEOUT": "14", "PGAS_IB_RETRY_COUNT": "3", "NUMBA_ENABLE_CUDASIM": "1",
}  # fmt: skip


HEAD = """
import os, subprocess, sys, threading, time
import numpy as np
import pgas
from pgas import cuda

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def attempt(call, *args):
    try:
        call(*args)
    except Exception as error:
        say(f"PE {me}: {type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module", autouse=True)
def network():
    with connected():
        yield


@pytest.fixture
def run(tmp_path):
    """Return run(*program, launcher=, limit=, **variables), which runs a job of 2 + 2 PEs to its end."""

    def run(*program, launcher="pgas.run", limit=1000, **variables):
        return nodes.run(tmp_path, program, {**os.environ, **JOB, **variables}, launcher=launcher, limit=limit)

    return run


@pytest.fixture
def program(tmp_path):
    def program(text):
        path = tmp_path / "program.py"
        path.write_text(HEAD + text)
        return str(path)

    return program


WORK = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
dest, source, total = pgas.zeros(4 * 3000, np.int64), pgas.full(3000, me + 1, np.int64), pgas.zeros(3000, np.int64)
sig = pgas.zeros(1, np.uint64)

@pgas.jit
def exchange(dest, source, sig):
    me, n = pgas.my_pe(), pgas.n_pes()
    for k in range(n):
        pe = (me + k) % n
        pgas.put_signal_block(dest[3000 * me : 3000 * (me + 1)], source, sig, 0, 1, pgas.SIGNAL_ADD, pe)
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(sig, 0, pgas.EQ, n)

@pgas.jit
def sum_up(total, source):
    pgas.reduce_block(pgas.TEAM_WORLD, total, source, pgas.SUM)

pgas.barrier_all()
pgas.launch(exchange, 1, 32, (dest, source, sig))
pgas.launch(sum_up, 1, 32, (total, source))
pgas.barrier_all()
found = dest.copy_to_host().reshape(n, 3000)
right = (found == np.arange(1, n + 1)[:, None]).all() and set(total.copy_to_host().tolist()) == {10}
say(f"PE {me}: near", pgas.team_n_pes(pgas.TEAM_SHARED), "right", right)
for array in (dest, source, total, sig):
    pgas.free(array)
pgas.finalize()
"""


@pytest.mark.parametrize("launcher", ["pgas.run", pytest.param("mpirun", marks=pytest.mark.slow)])
def test_two_machines(run, program, launcher):
    """put_signal between all pairs of PEs, and a reduction of all."""
    job = run(program(WORK), launcher=launcher)
    assert set(job.statuses) == {0}, job
    assert [job.out.count(f"PE {pe}: near 2 right True") for pe in range(4)] == [1] * 4, job


@pytest.mark.slow
def test_random_programs(run):
    job = run("-m", "pgas.perftests.programs", "--count", "20", "--seed", "7")
    assert job.statuses == [0, 0], job
    assert "20 programs" in job.outs[0], job


@pytest.mark.slow
def test_jacobi(run):
    job = run(str(ROOT / "docs/gallery/jacobi.py"))
    assert job.statuses == [0, 0], job
    assert "right" in job.outs[0], job


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ["signals", "order"])
def test_conformance(run, chapter):
    job = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / f"tests/conformance/test_{chapter}.py"))
    assert job.statuses == [0, 0], job
    assert " passed" in job.outs[0], job


LONG = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
dest, source = pgas.zeros(1 << 16, np.int32), pgas.full(1 << 16, me, np.int32)

@pgas.jit
def put_for_long(dest, source, pe):
    for i in range(4000):
        pgas.put(dest, source, pe)

pgas.barrier_all()
say("moving")
def fault():
    with open(sys.argv[0].replace("program.py", "fault"), "w") as file:
        file.write(str(time.time()))
    {fault}
if me == {pe}:
    threading.Timer(3, fault).start()
attempt(put_for_long[1, 1], dest, source, (me + 2) % n)
attempt(pgas.barrier_all)
sys.exit(1)
"""


def survivors(job, path, *pes):
    """Check that each of these PEs had an error, and that both machines ended in time."""
    note = Path(path).with_name("fault")
    assert note.exists(), job
    begun = float(note.read_text())
    assert max(job.ended) - begun < TIMEOUT_S + 10, job
    for pe in pes:
        said = [line for line in job.out.splitlines() if f"PE {pe}: " in line and "Error" in line]
        assert said, (pe, job)
    assert all(job.statuses), job


@pytest.mark.slow
def test_a_pe_of_the_other_machine_is_killed(run, program):
    path = program(LONG.format(pe=3, fault="os.kill(os.getpid(), 9)"))
    job = run(path)
    survivors(job, path, 0, 1, 2)
    assert "PE 3" in job.outs[0], job
    assert "killed by signal 9" in job.outs[0], job


@pytest.mark.slow
def test_the_launcher_of_the_other_machine_is_killed(run, program):
    path = program(LONG.format(pe=3, fault="os.kill(os.getppid(), 9)"))
    job = run(path)
    survivors(job, path, 0, 1)


@pytest.mark.slow
def test_the_link_goes_down(run, program):
    """During transfers of all PEs: the errors name the port, or the PE that does not answer."""
    interface = NODES[1].interface
    path = program(LONG.format(pe=2, fault=f"subprocess.run(['ip', 'link', 'set', '{interface}', 'down'])"))
    try:
        job = run(path)
    finally:
        ip("link", "set", interface, "up")
    survivors(job, path, 0, 1, 2, 3)
