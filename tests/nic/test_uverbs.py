"""IBGDA over the real pyverbs, libibverbs and libmlx5: each test runs a command with the emulated devices of tests/uverbs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from uverbs.__main__ import missing

from pgas.perftests.harness.jobs import mpirun

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"capability missing: {missing()}")


def run(*command, seconds=240, **variables):
    """Run a command with the devices; return its exit status and output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PGAS_", "PMI_", "PYTEST_", "COV_"))}
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support"), kept.get("PYTHONPATH", ""))))
    environment = {**kept, "PYTHONPATH": path, "NUMBA_ENABLE_CUDASIM": "1", "PGAS_SYMMETRIC_SIZE": "64M", **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", "uverbs", *command],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"no end after {seconds} s\n{process.communicate()[0]}")
    return process.returncode, out


def launcher(npes):
    try:
        return mpirun(npes)
    except FileNotFoundError:
        pytest.skip("capability missing: an mpirun")


def passes(*command, **variables):
    status, out = run(*command, **variables)
    assert status == 0, out
    assert " passed" in out, out


def program(tmp_path, text, npes=2, **variables):
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + text)
    return run(*launcher(npes), sys.executable, str(path), PGAS_TRANSPORT="ibgda", **variables)


PRELUDE = """
import os, sys
import numpy as np
import pgas
from pgas.job import runtime
from pgas.transports.ibgda.devx import DevX

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@pgas.jit
def put(dest, source, pe):
    pgas.put_block(dest, source, pe)

def shift():
    me, n = pgas.my_pe(), pgas.n_pes()
    dest, source = pgas.zeros(64, np.int32), pgas.full(64, me, np.int32)
    put[1, 32](dest, source, (me + 1) % n)
    pgas.barrier_all()
    assert (dest.copy_to_host() == (me - 1) % n).all()
    pgas.free(dest)
    pgas.free(source)
"""


def test_the_adapter():
    """uverbs/test_devx.py: registers, memory, ports, refusals."""
    passes(sys.executable, "-m", "pytest", "tests/uverbs", "-q")


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests", [("tests/conformance",), tuple(f"tests/mpi/test_{name}.py" for name in ("nic", "reset", "streams", "heap_growth"))]
)
def test_kernels_of_two_pes(tests):
    """In the simulator over ibgda; host memory stands for the GPU's."""
    passes(*launcher(2), sys.executable, "-m", "pytest", *tests, "-q", PGAS_TRANSPORT="ibgda", PGAS_HCA="mlx5_0")


@pytest.mark.slow
def test_memory_that_is_registered():
    """Plain memory of a process, which a card in another process cannot reach here, so the PE has its own card."""
    passes("--local", sys.executable, "-m", "pytest", "tests/mpi/test_register.py", "-q", PGAS_TRANSPORT="ibgda", PGAS_HCA="mlx5_0")


@pytest.mark.slow
def test_doorbells_that_a_cpu_rings():
    """In registers that libmlx5 has mapped."""
    passes(
        *launcher(2), sys.executable, "-m", "pytest", "tests/mpi/test_nic.py", "-q", "-k", "signal or share or more_than or fence",
        PGAS_TRANSPORT="ibgda", PGAS_HCA="mlx5_0", PGAS_IBGDA_NIC_HANDLER="cpu",
    )  # fmt: skip


#: Variables of init, and its output on every PE.
REFUSED = (
    ({"PGAS_HCA": "mlx5_7"}, "PGAS_HCA=mlx5_7: this machine has no such device; RDMA devices here: mlx5_0 (port 1 ACTIVE), mlx5_1"),
    ({"PGAS_HCA": "mlx5_0:2"}, "PGAS_HCA=mlx5_0:2: mlx5_0 has no such port"),
    ({"PGAS_HCA": "mlx5_1", "PGAS_IB_GID_INDEX": "9"}, "PGAS_IB_GID_INDEX=9: no such GID; GIDs in use on port 1: 0 ("),
    ({"PGAS_HCA": "mlx5_1", "PGAS_IB_SL": "9"}, "PGAS_IB_SL=9: an Ethernet port has priorities 0 to 7"),
)


@pytest.mark.slow
def test_roce_with_every_variable_and_what_is_refused(tmp_path):
    """Several jobs in the same processes; all but the last one are refused."""
    text = f"""
for variables, _ in {REFUSED!r}:
    os.environ |= {{"PGAS_IB_GID_INDEX": "-1", **variables}}
    try:
        pgas.init()
    except pgas.TransportError as error:
        say("refused:", error)
os.environ |= {{"PGAS_HCA": "mlx5_1:1", "PGAS_IB_SL": "3", "PGAS_IB_GID_INDEX": "1"}}
with pgas.init() as job:
    shift()
    port, path = job.nic.adapter.query_port(), job.nic.qps[0]._path
    say("port", port.link_layer, path.gid_index, path.sl, path.traffic_class, path.timeout, path.retry_count)
"""
    variables = {"PGAS_IB_TRAFFIC_CLASS": "104", "PGAS_IB_TIMEOUT": "14", "PGAS_IB_RETRY_COUNT": "3", "PGAS_DEBUG": "info"}
    status, out = program(tmp_path, text, seconds=120, **variables)
    assert status == 0, out
    refused = [line for line in out.splitlines() if line.startswith("refused:")]
    assert len(refused) == 2 * len(REFUSED), out
    for _, words in REFUSED:
        assert sum(words in line for line in refused) == 2, out
    assert out.count("port Ethernet 1 3 104 14 3") == 2, out
    assert "transport ibgda: asked for; over mlx5_1:1 (asked for)" in out, out


@pytest.mark.slow
def test_a_wqe_that_fails(tmp_path):
    """A real card reports only the CQE, which is that of the first error if nothing was queued behind it."""
    text = """
from pgas.transports.softhca.process import client
pgas.init()
if pgas.my_pe() == 0:
    client.Observer(os.environ["UVERBS_CARD"]).set_faults("fail=1:0x13")
    dest, source = pgas.zeros(64, np.int32), pgas.zeros(64, np.int32)
    try:
        put[1, 32](dest, source, 1)
    except pgas.CompletionError as error:
        say("failed:", error)
else:
    pgas.zeros(64, np.int32), pgas.zeros(64, np.int32)
sys.exit(3)
"""
    status, out = program(tmp_path, text, PGAS_HCA="mlx5_0")
    assert status != 0, out
    assert "put_block: queue pair 1 to PE 1 (QP 0x" in out, out
    assert "failed at WQE 0: remote access error" in out, out
    assert "(from its CQE)" in out, out


@pytest.mark.slow
def test_a_heap_in_pieces(tmp_path):
    """One region of a heap that grew is refused: libibverbs registers the pieces, and DevX makes one key of them."""
    text = """
from pgas.transports.softhca.process import client
client.Observer(os.environ["UVERBS_CARD"]).set_faults("refuse=mr_of_chunks")
job = pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
arrays = [pgas.full(3 << 17, 10 * me + i, np.int64) for i in range(3)]
pgas.barrier_all()
put[1, 32](arrays[1], arrays[2], (me + 1) % n)
pgas.barrier_all()
assert (arrays[1].copy_to_host() == 10 * ((me - 1) % n) + 2).all()
say("pieces:", [piece.nbytes >> 20 for piece in job.nic._pieces][1:])
"""
    variables = {"PGAS_SYMMETRIC_SIZE": "4M", "PGAS_CUMEM_GRANULARITY": "2M"}
    status, out = program(tmp_path, text, PGAS_HCA="mlx5_0", **variables)
    assert status == 0, out
    assert out.count("pieces: [2, 4]") == 2, out


@pytest.mark.slow
def test_ibrc_over_plain_verbs():
    """Every kind of request, and registered memory. One PE with its own card, as libmlx5's queues are in private memory."""
    command = (
        "--local",
        sys.executable,
        "-m",
        "pytest",
        "tests/mpi/test_requests.py",
        "tests/mpi/test_register.py",
        "tests/mpi/test_reset.py",
        "tests/mpi/test_heap_growth.py",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    passes(*command, PGAS_TRANSPORT="ibrc", PGAS_HCA="mlx5_0")
