"""nvshmem4py's names: the recorded ones, those of an installed package, and what pgas.nvshmem has of them; unchanged programs; imports."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference
from numba import cuda

from pgas.nvshmem import core

RECORDED = reference.names_of_nvshmem4py()
MODULES = ("memory", "init_fini", "nvshmem_types", "interop/cupy", "interop/torch", "direct", "collective", "rma", "amo", "teams")


def test_every_name_has_a_status():
    for module, names in RECORDED.items():
        assert names == sorted(set(names))
        for name in names:
            status, note = reference.status_of(module, name)
            assert (status == "covered") == (note == ""), f"{module}.{name}"


def test_nothing_else_is_listed():
    for module, counterpart in reference.COUNTERPARTS.items():
        for table in ("MISSING", "DIFFERS"):
            assert getattr(counterpart, table, {}).keys() - set(RECORDED[module]) == set(), module
    assert core.device.numba.__all__ == RECORDED["nvshmem.core.device.numba"]
    public = {name for name in vars(core) if getattr(core, name) not in (core.device,) and re.match("[A-Za-z]", name)}
    modules = {"Any", "NoReturn", "DIFFERS", "MISSING", "device", "memory", "operations", "setup", "simulated", "teams"}
    assert public - modules | core.MISSING.keys() == set(RECORDED["nvshmem.core"])


def listed(path):
    """Return the public names of a module of nvshmem4py, from its source, because importing it needs its libraries and another Numba."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")}


def test_names_of_the_installed_package():
    """Also of an unpacked wheel on PYTHONPATH: python -m pip download --no-deps nvshmem4py-cu13==0.4.1."""
    spec = importlib.util.find_spec("nvshmem")
    if spec is None or spec.origin is None:
        pytest.skip("capability missing: nvshmem4py 0.4.1")
    package = Path(spec.origin).parent / "core"
    assert set().union(*(listed(package / f"{module}.py") for module in MODULES)) == set(RECORDED["nvshmem.core"])
    for module, path in (("utils", "utils.py"), ("device", "device/__init__.py"), ("interop.cute", "interop/cute.py")):
        assert listed(package / path) == set(RECORDED[f"nvshmem.core.{module}"]), module
    device = [path for path in (package / "device" / "numba").glob("*.py") if path.name != "__init__.py"]
    assert set().union(*map(listed, device)) == set(RECORDED["nvshmem.core.device.numba"])


@pytest.mark.parametrize("name", core.MISSING)
def test_a_missing_host_function_names_what_to_use(name):
    with pytest.raises(NotImplementedError, match=rf"^nvshmem\.core\.{name}: {re.escape(core.MISSING[name])}$"):
        getattr(core, name)(1, 2)


MISSING_CALLS = {"ask_smem": "0", "give_smem": "a", "release_smem": "", "get_multicast_array": "0, a"}


@pytest.mark.parametrize(("name", "arguments"), MISSING_CALLS.items())
def test_a_missing_device_function_names_what_to_use(name, arguments):
    assert MISSING_CALLS.keys() == core.device.numba.MISSING.keys()
    found = {"function": getattr(core.device.numba, name)}
    exec(f"def kernel(a):\n    function({arguments})", found)
    with pytest.raises(TypeError, match=rf"nvshmem\.core\.device\.numba\.{name}: {re.escape(core.device.numba.MISSING[name])}$"):
        cuda.jit(found["kernel"])[1, 1](cuda.device_array(4))


@pytest.mark.parametrize("name", ["p", "put_block", "reduce", "get_peer_array", "give_smem"])
def test_a_device_function_on_the_host(name):
    with pytest.raises(TypeError, match=rf"^nvshmem\.core\.device\.numba\.{name} is a device function: call it inside a kernel$"):
        getattr(core.device.numba, name)()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("device.reduce(0, a, a, 'mean')", "op must be one of the constants sum, prod, min, max, and, or, xor, not 'mean'"),
        ("device.reduce_block(0, a, a, 3)", "op must be one of the constants sum, prod, min, max, and, or, xor, not int64"),
        ("device.put(1, a, 0)", "pgas.put: dest must be an array, not int64"),
        ("device.put(a, a)", "device.numba.put: missing a required argument: 'pe'; the parameters are dst, src, pe"),
    ],
)
def test_wrong_calls(call, message):
    found = {"device": core.device.numba}
    exec(f"def kernel(a):\n    {call}", found)
    with pytest.raises(TypeError, match=re.escape(message)):
        cuda.jit(found["kernel"])[1, 1](cuda.device_array(4))


# ------------------------------------------------------------------------------------------------------------ unchanged programs

#: A program without MPI, whose PEs a launcher of pgas started.
UNCHANGED = """
import sys
import pgas.nvshmem.__main__
from importlib.util import find_spec
import cuda.core
import cupy
import nvshmem, nvshmem.core, nvshmem.bindings
import nvshmem.core.device.numba as shmem
from nvshmem.core.interop.cupy import array
import nvshmem.core.rma, nvshmem.core.teams
from nvshmem.core.nvshmem_types import *
from nvshmem.core.init_fini import init, finalize
from nvshmem.core.utils import dtype_nbytes, get_size
from numba import cuda as numba_cuda
from cuda.core import Device, Stream, system

@numba_cuda.jit
def shift(dst, src):
    shmem.p(dst, src[0], (shmem.my_pe() + 1) % shmem.n_pes())

assert sys.argv[1:] == ["-x", "1"] and __name__ == "__main__" and system.get_num_devices() == 1
device = Device()
init(device=device, initializer_method="mpi")
stream = Stream.from_handle(numba_cuda.stream().handle.value)
src, dst = array((1,), dtype="int32"), nvshmem.core.array(1, "int32")
src[:] = nvshmem.bindings.my_pe() + 1
shift[1, 1, stream](dst, src)
nvshmem.core.barrier_all(stream=stream)
device.sync()
assert isinstance(dst, cupy.ndarray) and cupy.allclose(dst * 2, [4 - 2 * nvshmem.core.my_pe()]) and get_size((2,), "half") == 4
wide = nvshmem.core.array((6,), dtype="int")  # of NumPy's and CuPy's int
assert wide.shape == (6,) and wide.dtype == "int64" and get_size(6, "int") == 48 and dtype_nbytes("int") == 4
assert Teams.TEAM_WORLD == 0 and nvshmem.core.rma.put is nvshmem.core.put and nvshmem.core.teams.team_split_strided
try:
    import nvshmem.bindings.device.numba
except ModuleNotFoundError as error:
    assert str(error).startswith("nvshmem.bindings.device: pgas lacks this module of nvshmem4py; use "), error
else:
    raise AssertionError
found = [find_spec(name) is not None for name in ("cupy", "nvshmem.core.amo", "nvshmem.core.amo.setup", "nvshmem.core.x", "nvshmem.x")]
assert found == [True, True, False, False, False], found
finders = list(sys.meta_path)
pgas.nvshmem.__main__.install()
assert sys.meta_path == finders
assert not device.properties.multicast_supported and nvshmem.__version__ == "0.4.1"
print(f"PE {nvshmem.core.my_pe()} of {nvshmem.core.n_pes()} got {dst[0]}", flush=True)
for each in (src, dst, wide):
    nvshmem.core.free_array(each)
finalize()
"""


def test_a_program_that_does_not_exist(tmp_path):
    command = [sys.executable, "-m", "pgas.run", "--as-nvshmem", "no.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "pgas: no.py: No such file or directory\n")


@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
def test_a_program_started_by_pgas_run(tmp_path, module, monkeypatch):
    (tmp_path / "theirs.py").write_text(UNCHANGED, encoding="utf-8")
    for name in ("PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    program = ["-m", "theirs"] if module else ["theirs.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pgas.run", "-n", "2", "--as-nvshmem", *program, "-x", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"PE \d of 2 got \d", done.stdout)) == ["PE 0 of 2 got 2", "PE 1 of 2 got 1"]


#: Reports how long the import takes after that of pgas, in ms: the shortest of three.
IMPORT = """
import sys, time
import pgas
assert not any(name.startswith("pgas.nvshmem") for name in sys.modules)
before = time.perf_counter()
import pgas.nvshmem
print(1e3 * (time.perf_counter() - before))
"""


@pytest.mark.slow
def test_the_import_takes_at_most_50_ms_more():
    times = [float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(times) <= 50
