"""The runner of NVIDIA's tests: a made-up clone with tests that pass, fail, and are skipped, and an example."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = {"test_a_clone"}

TOOL = Path(__file__).with_name("nvidia_tests.py")
ROOT = TOOL.parents[2]

UTILS = """
from mpi4py import MPI
import nvshmem.core
def uid_init():
    nvshmem.core.init(mpi_comm=MPI.COMM_WORLD, initializer_method="mpi")
"""

CONFTEST = """
import pytest
import nvshmem.core
from utils import uid_init
@pytest.fixture(scope="session", autouse=True)
def session():
    uid_init()
    yield
    nvshmem.core.finalize()
"""

DEVICE = """
import nvshmem.core
import pytest
@pytest.mark.parametrize("size", [1, 2])
def test_sizes(size):
    array = nvshmem.core.array(size)
    nvshmem.core.free_array(array)
def test_what_is_missing():
    nvshmem.core.ask_smem(0)
def test_elsewhere():
    pytest.skip("not here")
"""

HOST = "import nvshmem.core\ndef test_pes():\n    assert nvshmem.core.n_pes() == 2\n"


def clone(folder):
    top = folder / "nvshmem4py"
    for path, text in {
        "test/device/numba/utils.py": UTILS,
        "test/device/numba/conftest.py": CONFTEST,
        "test/device/numba/test_device_sizes.py": DEVICE,
        "test/utils.py": UTILS,
        "test/pes_test.py": HOST,
        "examples/hello.py": f"{UTILS}\nuid_init()\nnvshmem.core.finalize()\n",
    }.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text, encoding="utf-8")
    return folder


def ran(tmp_path, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(TOOL), str(clone(tmp_path / "clone")), "--times", "1", "--json", "found.json", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "found.json").read_text()), done.stdout


IN_A_FILE = {
    "device test_device_sizes.py::test_sizes[1]": "passed",
    "device test_device_sizes.py::test_sizes[2]": "passed",
    "device test_device_sizes.py::test_what_is_missing": "failed",
    "device test_device_sizes.py::test_elsewhere": "skipped",
}


@pytest.mark.slow  # of a tool
def test_a_clone(tmp_path):
    found, said = ran(tmp_path, "--together")
    assert found == IN_A_FILE
    assert "device      4 cases: 1 failed, 2 passed, 1 skipped" in said
    assert "failed   device   test_device_sizes.py::test_what_is_missing: NotImplementedError: nvshmem.core.ask_smem: pgas needs" in said


def test_each_in_a_job(tmp_path):
    found, said = ran(tmp_path, "--at-once", "2")
    assert found == IN_A_FILE | {"host pes_test.py::test_pes": "passed", "examples hello.py": "passed"}
    assert "examples    1 cases: 1 passed" in said
