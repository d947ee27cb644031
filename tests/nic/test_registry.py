"""Transports are objects in one registry: an external one runs like pgas's own, and the software card is needed only as a NIC."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_uverbs
from uverbs.__main__ import missing

from pgas.base import config
from pgas.base.errors import TransportError
from pgas.job.paths import topology
from pgas.perftests.harness.jobs import mpirun
from pgas.transports import registry

ROOT = Path(__file__).resolve().parents[2]

needs_devices = pytest.mark.skipif(missing() is not None, reason=f"capability missing: {missing()}")
CHAPTER = "tests/conformance/test_signals.py"


def suite(*arguments, npes=2, **variables):
    """Run chapters of the conformance suite; return their output."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_ENABLE_CUDASIM": "1", "PGAS_DEBUG": "info", **variables}
    command = [*mpirun(npes), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout, done.stdout
    return done.stdout


def test_names():
    assert registry.names() == ("p2p", "ibgda", "ibrc")
    assert registry.through_nics() == ("ibgda", "ibrc")
    assert registry.get("auto") is registry.get("p2p")
    assert registry.pairs() == ("p2p,ibgda", "p2p,ibrc")
    assert [registry.over_nic(name) for name in ("auto", "p2p", "ibrc", "p2p,ibgda")] == [("ibgda", "ibrc"), (), ("ibrc",), ("ibgda",)]
    assert config.TRANSPORTS == ["auto", "p2p", "ibgda", "ibrc", "p2p,ibgda", "p2p,ibrc"]
    with pytest.raises(TransportError, match="PGAS_TRANSPORT=tcp: this version of pgas has no such transport; available: p2p, ibgda, ibrc"):
        registry.get("tcp")


@pytest.mark.parametrize("chapter", [CHAPTER, pytest.param("tests/conformance/test_rma.py", marks=pytest.mark.slow)])
def test_a_transport_from_outside(chapter):
    """The product needs no change for it: choice, constants, host side and device functions are the transport's own."""
    out = suite("-s", "-p", "toy_transport", chapter, "-k", "signal or put or get", PGAS_TRANSPORT="toy")
    assert "transport toy" in out, out


@pytest.mark.slow
def test_p2p_without_the_software_card():
    suite("-p", "without_card", CHAPTER, PGAS_TRANSPORT="p2p")


def test_without_the_software_card_a_job_over_it_fails(monkeypatch):
    """This shows that the plugin without_card really hides it."""
    with pytest.raises(AssertionError, match=r"No module named 'pgas.transports.softhca' \(hidden from pgas.job.paths.card\)"):
        suite("-p", "without_card", CHAPTER, "-x", PGAS_TRANSPORT="ibgda", npes=1)


@pytest.mark.slow
@needs_devices
def test_devx_without_the_software_card():
    command = [*mpirun(2), sys.executable, "-m", "pytest", "-q", "-p", "without_card", CHAPTER]
    test_uverbs.passes(*command, PGAS_TRANSPORT="ibgda", PGAS_HCA="mlx5_0")


@pytest.mark.slow
@needs_devices
def test_verbs_without_the_software_card():
    command = [
        "--local",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "without_card",
        "tests/mpi/test_requests.py",
    ]
    test_uverbs.passes(*command, "-k", "put or signal", PGAS_TRANSPORT="ibrc", PGAS_HCA="mlx5_0")


def test_topology_names_no_transport():
    """A transport that maps peers' memory needs no NIC, whatever its name."""

    class Other:
        name, maps_peers = "other", True

    pes = [topology.PE(number, "here", 1, "0", None, "", False, 0, ()) for number in range(2)]
    registry._registered["other"] = Other()
    try:
        assert topology.choose_transport("other", topology.Neighbors(pes, [[None] * 2] * 2), pytest.fail)[0] == "other"
    finally:
        del registry._registered["other"]
