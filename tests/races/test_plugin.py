"""In pytest, a test fails if the order checker finds something in it: with PGAS_CHECK=order, or with the fixture pgas_order."""

import os
import re
import subprocess
import sys

import pytest
from jobs import mpirun

TESTS = """
import numpy as np
import pgas
import pytest

@pgas.jit
def send(data, arrived, got, careful):
    if pgas.my_pe() == 0:
        pgas.p(data, 0, 7, 1)
        if careful:
            pgas.fence()
        pgas.signal_op(arrived, 0, 1, pgas.SIGNAL_SET, 1)
    else:
        pgas.signal_wait_until(arrived, 0, pgas.EQ, 1)
        got[0] = data[0]

def message(careful):
    with pgas.init():
        data, arrived, got = pgas.zeros(1, np.int64), pgas.zeros(1, np.uint64), pgas.zeros(1, np.int64)
        pgas.launch(send, 1, 1, (data, arrived, got, careful))
        pgas.barrier_all()

@pytest.mark.parametrize("careful", [False, True])
def test_fixture(careful, pgas_order):
    message(careful)

def test_without_fixture():
    message(False)

def test_that_fails(pgas_order):
    message(False)
    assert False  # The report follows.

@pytest.mark.pgas_unordered("on purpose")
def test_marked(pgas_order):
    message(False)
"""


@pytest.mark.parametrize(
    ("check", "failed"),
    [
        ("", ["test_fixture[False]", "test_that_fails"]),
        ("order", ["test_fixture[False]", "test_that_fails", "test_without_fixture"]),
    ],
)
def test_tests_fail_with_the_report(tmp_path, check, failed):
    (tmp_path / "test_message.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pgas.check.pytest_plugin"]')
    (tmp_path / "pytest.ini").touch()
    command = [*mpirun(2), sys.executable, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PGAS_CHECK": check, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert sorted(re.findall(r"^_+ (\S+) _+$", done.stdout, re.MULTILINE)) == sorted(2 * failed), done.stdout + done.stderr
    report = r"missing: fence\n.* +test_message.py:9: pgas.p\(data, 0, 7, 1\): data\[0\] of PE 1.*\n.* +test_message.py:15: data\[0\]"
    assert len(re.findall(report, done.stdout)) == 2 * len(failed), done.stdout
    assert len(re.findall("these two accesses", done.stdout + done.stderr)) == 2 * len(failed)  # no others when Python ends
    assert not list(tmp_path.glob("pgas-order-*"))
