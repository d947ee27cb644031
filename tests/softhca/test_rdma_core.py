"""rdma-core's own tests on the software card: WQEs, doorbells and CQs as libmlx5 writes and reads them, both ends in one process.

golden/rdma-core-44.txt has the expected outcome of each test: ``passed``, or ``skipped`` with rdma-core's own reason. Skipped tests need
features that the card or the emulated kernel (tests/uverbs) lacks: UD, UC, raw packet and XRC QPs, SRQs, memory windows, completion
channels, CQEs of 128 bytes, device memory, re-registration. Tests of dma-bufs are left out, as they need a DRM device.
``python tests/softhca/test_rdma_core.py`` writes the file again, in an environment with pyverbs and scapy.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from uverbs import rdma_core
from uverbs.__main__ import missing

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "rdma-core-44.txt"

#: DevX traffic; RC: send, write, read and atomics with both posting interfaces; CQs; raw WQEs between those of libmlx5; devices, protection
#: domains, address handles, memory regions, UARs.
MODULES = (
    "test_mlx5_devx", "test_qp", "test_qpex", "test_atomic", "test_cq", "test_cqex", "test_cq_events", "test_mlx5_cq", "test_mlx5_raw_wqe",
    "test_relaxed_ordering", "test_pd", "test_addr", "test_device", "test_mr", "test_fork", "test_mlx5_uar",
)  # fmt: skip

LACKING = missing() or (None if rdma_core.DEBIAN.is_dir() else f"rdma-core's tests in {rdma_core.DEBIAN} (Debian: rdma-core)")

#: A reason that concerns this machine.
SCAPY = "scapy package is needed"


def run(*module):
    """Run a module in a process with a card; return its output."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "uverbs", "--local", sys.executable, "-m", *module]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def outcomes(folder):
    rdma_core.unpack(folder)
    results = folder / "results"
    run("uverbs.rdma_core", str(folder), str(results), *MODULES)
    return {test: (outcome, why) for test, outcome, why in map(json.loads, results.read_text().splitlines()) if "DmaBuf" not in test}


def golden():
    expected = {}
    for line in GOLDEN.read_text().splitlines() if GOLDEN.exists() else ():
        test, outcome, *why = line.split(maxsplit=2)
        expected[test] = outcome, "".join(why)
    return expected


EXPECTED = golden()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    if LACKING is not None:
        pytest.skip(f"capability missing: {LACKING}")
    return outcomes(tmp_path_factory.mktemp("rdma-core"))


@pytest.mark.slow
@pytest.mark.parametrize("test", EXPECTED)
def test_of_rdma_core(seen, test):
    outcome, why = seen[test]
    if SCAPY in why:
        pytest.skip("capability missing: scapy, with which rdma-core builds DevX commands")
    assert (outcome, why) == EXPECTED[test]


@pytest.mark.slow
def test_nothing_else_was_run(seen):
    assert seen.keys() == EXPECTED.keys()


@pytest.mark.skipif(missing() is not None, reason=f"capability missing: {missing()}")
def test_plain_verbs():
    """uverbs/test_queues.py, a part of what rdma-core tests that takes no time, in a process with a card."""
    out = run("pytest", "tests/uverbs/test_queues.py", "-q", "-p", "no:cacheprovider")
    assert " passed" in out, out
    assert " skipped" not in out, out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        ended = outcomes(Path(name))
    GOLDEN.write_text("".join(f"{' '.join(filter(None, (test, *how)))}\n" for test, how in sorted(ended.items())))
