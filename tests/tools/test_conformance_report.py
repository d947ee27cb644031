"""The report of the conformance suite: the worst outcome of a bullet's tests, the library's own words for refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance import report

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_another_library",)

CHAPTERS_AT = Path(report.__file__).parent

PUT = ("Remote memory access", "nbi, then quiet")


def said(nodeid, outcome, when="call", reason=None, elsewhere=None):
    longrepr = ("file.py", 1, f"Skipped: {reason}") if outcome == "skipped" else reason
    properties = [("failed on", elsewhere)] if elsewhere else []
    flags = {name: outcome == name for name in ("passed", "failed", "skipped")}
    return SimpleNamespace(nodeid=nodeid, when=when, longrepr=longrepr, user_properties=properties, duration=0.5, **flags)


def run(*reports, bullets, about=None, variables=None):
    collector = report.Collector()
    for nodeid, which in bullets.items():
        collector.expect(nodeid, which)
    for one in reports:
        collector.add(one)
    about = {"library": "pgas", "transport": "p2p", "engine": None, "npes": 2, **(about or {})}
    return json.loads(json.dumps(collector.run(about, variables or {})))


def outcomes(*runs):
    return {
        name: {bullet: (outcome, reasons) for bullet, (outcome, reasons, _) in column.items()}
        for name, column in report.columns(runs).items()
    }


def test_the_secrets_of_a_job_are_not_recorded(monkeypatch):
    for name in ("PGAS_SECRET", "PGAS_LAUNCHED", "PGAS_TRANSPORT"):
        monkeypatch.setenv(name, "p2p")
    assert {name for name in report.variables() if name in ("PGAS_SECRET", "PGAS_LAUNCHED", "PGAS_TRANSPORT")} == {"PGAS_TRANSPORT"}


NO_GPU = said("c", "skipped", "setup", "no GPU")


@pytest.mark.parametrize(
    ("reports", "outcome", "reasons"),
    [
        ([said("a", "passed"), said("b", "failed", reason="x\nE wrong"), NO_GPU], "failed", ["E wrong", "no GPU"]),
        ([said("a", "skipped", reason="refused: pgas.free: no array")], "refused", ["pgas.free: no array"]),
        ([said("a", "passed"), NO_GPU], "passed", ["no GPU"]),
        ([said("a", "passed"), said("a", "failed", "setup", "E left running")], "failed", ["E left running"]),
        ([said("a", "passed"), said("a", "failed", "teardown", "E left running")], "failed", ["E left running"]),
        ([said("a", "passed"), said("a", "passed", "teardown", elsewhere=[1])], "failed", ["on PEs [1]"]),
    ],
)
def test_a_bullet_has_the_worst_outcome_of_its_tests(reports, outcome, reasons):
    """The reasons are the library's own; a failure in setup, in teardown or on another PE counts."""
    assert outcomes(run(*reports, bullets={name: [PUT] for name in "abc"})) == {"p2p 2 PE": {PUT: (outcome, reasons)}}


ADAPTER = """
import pgas
from pgas import *

__all__ = [name for name in pgas.__all__ if name not in ("put_signal_nbi", "signal_fetch", "test_any")]
"""


@pytest.mark.slow
def test_another_library(tmp_path):
    """A module that lacks some functions: their tests are refused by name, the others pass."""
    (tmp_path / "another.py").write_text(ADAPTER)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    variables = {"CONFORMANCE_LIBRARY": "another", "PYTHONPATH": path, "NUMBA_ENABLE_CUDASIM": "1", "PGAS_TRANSPORT": "p2p"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PGAS_", "PYTEST_", "PMI_"))}
    tests = ("test_senders.py", "test_signals.py", "test_wait.py")
    command = [sys.executable, "-m", "pytest", "-q", "--conformance-report", str(tmp_path / "report.json"), "-k", "sender or itself or any"]
    command += [str(CHAPTERS_AT / name) for name in tests]
    ended = subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
    (one,) = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert one["about"]["library"] == "another"
    found = outcomes(one)["p2p 1 PE"]
    assert found["Signals", "signal to itself"] == ("passed", ["another has no put_signal_nbi"])
    assert found["Wait and test", "any is fair"] == ("refused", ["another has no test_any"])
    assert found["Signals", "earlier puts need a fence"] == ("passed", [])
