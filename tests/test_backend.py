"""The choice of GPU or simulator when pgas is imported, and init's line about it. Each case is a process that sees no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LINE = "pgas: no CUDA device here, kernels run in the simulator\n"
MPIRUN = Path(sys.executable).with_name("mpirun")


def python(program, *, launcher=(), **variables):
    """Run a program that sees no GPU, with these variables; return (status, stdout, stderr)."""
    unset = ("NUMBA_ENABLE_CUDASIM", "CUDA_MODULE_LOADING", "PMI_RANK", "PMI_SIZE", "PMI_FD", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    environment = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith("PGAS_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", **variables}
    command = [*launcher, sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def test_numba_cuda_first_without_gpu_names_the_remedy():
    status, out, err = python("from numba import cuda\ncuda.jit\nimport pgas")
    assert status == 1
    assert out == ""
    assert err.splitlines()[-1] == (
        "pgas.PgasError: numba.cuda was imported before pgas, and this machine has no GPU: "
        "import pgas first (it selects the simulator), or set NUMBA_ENABLE_CUDASIM=1"
    )


@pytest.mark.slow
def test_numba_without_cuda_first_is_fine():
    """Many libraries import Numba for the CPU."""
    status, out, err = python("import numba, numpy\nimport pgas\nprint(pgas.SIMULATOR)")
    assert (status, out, err) == (0, "True\n", "")


@pytest.mark.slow
def test_numba_cuda_first_with_the_simulator_chosen():
    assert python("from numba import cuda\nimport pgas\nprint(pgas.SIMULATOR)", NUMBA_ENABLE_CUDASIM="1") == (0, "True\n", "")


def test_numba_cuda_first_to_compile_only():
    assert python("from numba import cuda\nimport pgas\nprint(pgas.SIMULATOR)", NUMBA_ENABLE_CUDASIM="0") == (0, "False\n", "")


@pytest.mark.parametrize(("value", "simulator"), [("1", "True"), ("0", "False")])
def test_a_variable_decides_silently(value, simulator):
    program = "import pgas\nfrom numba import cuda\nfrom numba.cuda.core import config\nprint(pgas.SIMULATOR, bool(config.ENABLE_CUDASIM))"
    assert python(program, NUMBA_ENABLE_CUDASIM=value) == (0, f"{simulator} {simulator}\n", "")


@pytest.mark.slow
def test_one_line_on_stderr_once():
    program = "import os, pgas, pgas.base.backend\nfrom numba import cuda\npgas.init()\npgas.finalize()\npgas.init()\n"
    assert python(program + "print(pgas.SIMULATOR, os.environ['NUMBA_ENABLE_CUDASIM'])") == (0, "True 1\n", LINE)


@pytest.mark.parametrize(
    ("status", "line"), [(805, "pgas: no CUDA device here (CUDA_ERROR_MPS_CONNECTION_FAILED), kernels run in the simulator\n"), (0, LINE)]
)
def test_a_driver_that_does_not_start_is_named(status, line):
    """One that starts, but has no GPUs, is not named."""
    program = f"""
import ctypes

class Driver:
    def cuInit(self, flags):
        return {status}
    def cuDeviceGetCount(self, count):
        return 0
    def cuGetErrorName(self, status, name):
        name._obj.value = {{805: b"CUDA_ERROR_MPS_CONNECTION_FAILED"}}[status]
        return 0

load = ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **more: Driver() if name == "libcuda.so.1" else load(name, *rest, **more)
import pgas
print(pgas.SIMULATOR)
pgas.init()
"""
    assert python(program) == (0, "True\n", line)


@pytest.mark.parametrize(
    "modules",
    [
        "pgas.compile, pgas.job.gpu_verdicts, pgas.transports.softhca.process.server",
        pytest.param("pgas.doctor.probe", marks=pytest.mark.slow),
    ],
)
def test_gpu_runs_do_not_import_the_simulator(modules):
    program = f"import sys, {modules}\nprint([name for name in sys.modules if f'{{name}}.'.startswith('pgas.sim.')])"
    assert python(program, NUMBA_ENABLE_CUDASIM="0", PGAS_ENGINE="cuda") == (0, "[]\n", "")


@pytest.mark.slow
def test_children_inherit_the_choice_silently():
    child = "import pgas; pgas.init(); print(pgas.SIMULATOR)"
    program = f"import subprocess, sys, pgas\npgas.init()\nsubprocess.run([sys.executable, '-c', {child!r}])"
    assert python(program) == (0, "True\n", LINE)


@pytest.mark.parametrize(("rank", "said"), [("0", LINE), pytest.param("17", "", marks=pytest.mark.slow)])
def test_only_the_first_process_of_a_job_says_it(rank, said):
    assert python("import pgas.base.backend\npgas.base.backend.say_where()", PMI_RANK=rank) == (0, "", said)


@pytest.mark.slow
def test_commands_that_start_no_job_do_not_say_it():
    """Neither before their help nor before their output."""
    program = """
import contextlib, io, sys
from pgas.__main__ import main
from pgas.perftests import shmem_put_bw
for command in (main, shmem_put_bw.main):
    sys.argv = ["command", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        command()
sys.argv = ["command", "doctor", "--explain", "EMFILE"]
main()
"""
    status, out, err = python(program)
    assert (status, err) == (0, ""), out


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
def test_one_line_of_a_job():
    status, out, err = python("import pgas\npgas.init()\nprint(pgas.SIMULATOR)", launcher=(str(MPIRUN), "-n", "2"))
    assert (status, out) == (0, "True\n" * 2)
    assert err == LINE


#: A kernel that uses names of the module SAYS, which is replaced.
SAME_KERNEL = """
import numpy as np
import pgas
from numba import cuda as of_numba
from pgas import cuda as of_pgas

@of_pgas.jit(device=True)
def twice(x):
    return 2 * x

def double(a):
    shared = SAYS.shared.array(32, SAYS.types.int64)
    i = SAYS.grid(1)
    shared[SAYS.threadIdx.x] = twice(a[i])
    SAYS.syncthreads()
    a[i] = shared[31 - SAYS.threadIdx.x]
"""

PLACES = ("of_numba", "pgas.cuda")


@pytest.mark.parametrize("says", PLACES)
def test_kernels_may_say_pgas_cuda(says):
    """So may decorators, and the host."""
    program = (
        SAME_KERNEL
        + """
pgas.init()
for jit in (of_numba.jit, SAYS.jit, pgas.jit):
    a = SAYS.to_device(np.arange(64))
    jit(double)[2, 32, SAYS.stream()](a)
    assert a.copy_to_host().tolist() == [*range(62, -1, -2), *range(126, 62, -2)]
assert of_pgas is of_numba is pgas.cuda
"""
    )
    assert python(program.replace("SAYS", says), NUMBA_ENABLE_CUDASIM="1") == (0, "", "")


@pytest.mark.slow
def test_pgas_cuda_compiles_to_the_same_code():
    program = """
import hashlib
from pgas import sass
code = sass.compile_ptx(double, (SAYS.types.int64[::1],)).split(".visible .entry")[1]
print(hashlib.sha256(code.encode()).hexdigest())
"""
    printed = [python((SAME_KERNEL + program).replace("SAYS", says), NUMBA_ENABLE_CUDASIM="0") for says in PLACES]
    assert printed[0][0] == 0, printed
    assert printed[0] == printed[1]


@pytest.mark.slow
def test_threads_load_a_kernel_once():
    """Also when they launch it for the first time at once; a launch of another one, which is loaded, does not wait for that."""
    program = """
import threading, types
import pgas
from pgas.kernels.compiler import compiler
from numba.cuda import codegen

class Context:
    device = types.SimpleNamespace(id=0)
    loads = 0
    def create_module_image(self, *image):
        Context.loads += 1
        assert codegen.CUDACodeLibrary.get_cufunc(ready) == "ready"
        threading.Event().wait(0.3)
        return types.SimpleNamespace(get_function=lambda name: name)

def library(name, cache):
    made = codegen.CUDACodeLibrary.__new__(codegen.CUDACodeLibrary)
    made._entry_name, made._cufunc_cache, made._setup_functions, made._teardown_functions = name, cache, [], []
    made.get_cubin = lambda: None
    return made

codegen.devices = types.SimpleNamespace(get_context=Context)
ready, kernel, found = library("ready", {0: "ready"}), library("kernel", {}), []
threads = [threading.Thread(target=lambda: found.append(codegen.CUDACodeLibrary.get_cufunc(kernel))) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(found, Context.loads)
"""
    assert python(program, NUMBA_ENABLE_CUDASIM="0")[:2] == (0, "['kernel', 'kernel', 'kernel'] 1\n")


@pytest.mark.slow
def test_modules_are_loaded_eagerly():
    """With lazy loading a launch waits for the running kernel, so two PEs that wait for each other would hang."""
    program = "import pgas, os\nprint(os.environ['CUDA_MODULE_LOADING'])"
    assert python(program, NUMBA_ENABLE_CUDASIM="0")[:2] == (0, "EAGER\n")
    assert python(program, NUMBA_ENABLE_CUDASIM="0", CUDA_MODULE_LOADING="LAZY")[:2] == (0, "LAZY\n")


def test_without_gpu_nothing_is_counted():
    assert python("from pgas.base.backend import cuda_device_count\nprint(cuda_device_count())", NUMBA_ENABLE_CUDASIM="1")[1] == "0\n"


@pytest.mark.slow
def test_compiling_only_is_no_job():
    """NUMBA_ENABLE_CUDASIM=0 without a GPU allows compiling; init refuses with the reason."""
    status, _, err = python("import pgas\npgas.init()", NUMBA_ENABLE_CUDASIM="0")
    assert status == 1
    last = err.splitlines()[-1]
    assert last.startswith("pgas.PgasError: ")
    assert "CUDA" in last
    assert "NUMBA_ENABLE_CUDASIM" in last


@pytest.mark.parametrize(
    ("error", "remedy"),
    [("Numba needs NumPy 2.4 or less. Got NumPy 2.5.", "pip install 'numpy>=2.2,<2.5'"), ("no idea", "pip install --upgrade 'pgas[cu13]'")],
)
def test_numba_that_does_not_load_names_the_remedy(tmp_path, error, remedy):
    """doctor cannot, as it is part of pgas."""
    (tmp_path / "numba.py").write_text(f"raise ImportError({error!r})")
    root = str(Path(__file__).resolve().parent.parent)
    status, _, err = python("import pgas", PYTHONPATH=f"{tmp_path}{os.pathsep}{root}", NUMBA_ENABLE_CUDASIM="1")
    assert status == 1
    assert err.splitlines()[-1].startswith(f"ImportError: {error}; {remedy}")
