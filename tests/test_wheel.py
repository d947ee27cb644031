"""A wheel of this tree in an empty environment outside of the repository, with the packages of CUDA 12: what a user installs.

`make wheel` runs these tests; they download packages. The environment of all other tests has the packages of CUDA 13.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from examples import ROOT, programs
from test_architecture import SOURCES

pytestmark = pytest.mark.wheel

#: What a clean clone does not have.
_NOT_CLONED = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "out", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    clone, folder = tmp_path_factory.mktemp("clone") / "pgas", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, clone, symlinks=True, ignore=_NOT_CLONED)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, clone], capture_output=True, text=True, check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


class Installed:
    """A wheel in an environment of its own, and README's program in an empty folder."""

    def __init__(self, wheel: Path, folder: Path, python: str = sys.executable, extras: str = "cu12,mpich") -> None:
        self.work, self._environment = folder / "work", folder / "environment"
        self.work.mkdir()
        self.program, text = next(iter(programs(ROOT / "README.md").items()))
        (self.work / self.program).write_text(text)
        subprocess.run([python, "-m", "venv", self._environment], check=True)
        self.install = self.run("python", "-m", "pip", "install", "--disable-pip-version-check", f"pgas[{extras}] @ {wheel.as_uri()}")

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = self._environment / "bin"
        variables = {"HOME": str(self.work), "PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "PIP_CACHE_DIR": _pip_cache()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "NUMBA_", "PYTHON"))}
        return subprocess.run(
            [path / command, *arguments], cwd=self.work, env=inherited | variables, capture_output=True, text=True, timeout=280, check=False
        )

    def printed(self, command: str, *arguments: str) -> str:
        done = self.run(command, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _pip_cache() -> str:
    return subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    found = Installed(built[1], tmp_path_factory.mktemp("installed"))
    assert found.install.returncode == 0, found.install.stderr
    return found


def test_every_module_is_in_the_wheel(built):
    sdist, wheel = built
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name for name, path in SOURCES.items() if path.name == "__init__.py"}
    modules = {name.replace(".", "/") + ("/__init__.py" if name in packages else ".py") for name in SOURCES}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {name.split("/")[0].split("-")[0] for name in names} == {"pgas"}, "a top-level name of its own"
    assert "pgas/py.typed" in names
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/tests" in name], "they need the repository"


def check_readmes_program(installed):
    lines = ["PE 0 got 1.0 from its left neighbor", "PE 1 got 0.0 from its left neighbor"]
    assert sorted(installed.printed("mpirun", "-n", "2", "python", installed.program).splitlines()) == lines
    for command in (["pgas", "run"], ["python", "-m", "pgas.run"]):
        marked = [f"[PE {pe}] {line}" for pe, line in enumerate(lines)]
        assert sorted(installed.printed(*command, "-n", "2", installed.program).splitlines()) == marked


def test_readmes_program(installed):
    check_readmes_program(installed)


@pytest.mark.slow
def test_commands(installed):
    assert re.fullmatch(r"pgas \d+\.\d+\.\d+\n", installed.printed("pgas", "--version"))
    report = installed.printed("pgas", "doctor")
    assert "FAIL" not in report, report
    assert "cuda-bindings 12." in report
    table = installed.printed("mpirun", "-n", "2", "shmem_put_bw", "-e", "8K", "--transport", "p2p")
    assert re.search(r"^\s*8192\s", table, re.MULTILINE), table
    assert "NVSHMEM" in installed.printed("python", "-m", "pgas.perftests.compare")


@pytest.mark.parametrize("transport", ["p2p", "ibgda", pytest.param("ibrc", marks=pytest.mark.slow)])
def test_cuda_12_compiles(transport, installed):
    table = installed.printed("pgas", "compile", "--transport", transport, installed.program)
    name, instructions, registers, *_ = table.splitlines()[1].split()
    assert (name, int(instructions) > 100, int(registers) <= 255) == ("shift", True, True), table


def test_the_launcher_does_not_load_the_compiler(installed):
    """Which takes ten times as long."""
    done = installed.run("python", "-X", "importtime", "-m", "pgas.run", "--help")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pgas.job.bootstrap.store" in loaded
    assert not loaded & {"numba", "numpy", "mpi4py", "pgas.api", "pgas.base.backend"}


def test_uninstalling_leaves_nothing_to_import(installed):
    """The last test of this module: after kernels were compiled and kept on disk."""
    kept = list((installed.work / ".cache").rglob("*.nbc"))
    assert kept, "loops of the simulator are kept in the user's cache"
    installed.printed("python", "-m", "pip", "uninstall", "--yes", "pgas")
    done = installed.run("python", "-c", "import pgas")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pgas'"


def test_a_script_next_to_a_folder_named_pgas(tmp_path):
    """Such as the clone: the editable install of these tests is found, not the folder."""
    (tmp_path / "pgas").symlink_to(ROOT)
    (tmp_path / "script.py").write_text("import pgas\nprint(pgas.my_pe.__name__)\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "my_pe\n"), done.stderr


def other_python(version):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("not on this machine")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_other_releases_of_python(version, built, tmp_path):
    installed = Installed(built[1], tmp_path, other_python(version), "mpich")
    assert installed.install.returncode == 0, installed.install.stderr
    check_readmes_program(installed)


@pytest.mark.slow
def test_python_3_10_is_too_old(built, tmp_path):
    command = [other_python("3.10"), "-m", "pip", "install", "--no-deps", "--target", tmp_path, built[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(r"requires a different Python: 3\.10\.\d+ not in '>=3\.11'", done.stderr)
