"""PEs and their visible GPUs, in separate processes with a fake CUDA driver."""

import pytest
from test_backend import python

DRIVER = """
import pgas
from pgas.job.paths import gpu

SUCCESS = gpu.driver.CUresult.CUDA_SUCCESS
attributes = {name: getattr(gpu._Attribute, "CU_DEVICE_ATTRIBUTE_" + name) for name in ("MPS_ENABLED", "MULTIPROCESSOR_COUNT")}
under_mps = set()

def attribute(which, ordinal):
    return {attributes["MPS_ENABLED"]: int(ordinal in under_mps), attributes["MULTIPROCESSOR_COUNT"]: 132}[which]

gpu._attribute, gpu.uuid, gpu.cuda_device_count = attribute, "GPU-{}".format, lambda: 2
gpu.driver.cuDeviceGetCount = lambda: (SUCCESS, 2)
gpu.driver.cuCtxGetCurrent = lambda: (SUCCESS, 0)
gpu.driver.cuGetErrorName = lambda status: (SUCCESS, status.name.encode())
gpu.driver.cuGetErrorString = lambda status: (SUCCESS, b"a sentence")
"""


def on_gpus(program):
    return python(DRIVER + program, NUMBA_ENABLE_CUDASIM="0")


@pytest.mark.parametrize(
    ("error", "under_mps", "where", "remedy"),
    [
        ("LAUNCH_FAILED", {1}, " from its MPS server", "died while its kernel ran"),
        ("LAUNCH_FAILED", "set()", "", "compute-sanitizer"),
        ("DEVICE_UNAVAILABLE", "set()", "", "nvidia-smi -c DEFAULT"),
    ],
)
def test_no_context_says_what_is_known(error, under_mps, where, remedy):
    """After a client has died in a kernel, an MPS server refuses new ones until all of its clients have ended."""
    program = f"""
under_mps = {under_mps}
gpu.driver.cuDevicePrimaryCtxRetain = lambda ordinal: (gpu.driver.CUresult.CUDA_ERROR_{error}, None)
gpu.bind(3)
"""
    status, _, err = on_gpus(program)
    last = err.splitlines()[-1]
    assert status == 1
    assert last.startswith(f"pgas.PgasError: no context on GPU 1{where}: CUDA_ERROR_{error} (a sentence)"), err
    assert remedy in last


def test_a_context_is_retained_once():
    """The compiler retains it; an existing one is kept."""
    program = """
held = []
gpu.driver.cuDevicePrimaryCtxRetain = lambda ordinal: (SUCCESS, held.append(ordinal))
gpu.driver.cuDevicePrimaryCtxRelease = lambda ordinal: (SUCCESS, held.remove(ordinal))
gpu.compiler.select_device = held.append
gpu._enter(1)
print(held)
"""
    assert on_gpus(program) == (0, "[1]\n", "")


def test_whether_a_gpu_sees_a_nics_writes_in_order():
    program = """
order = gpu._Attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
gpu._attribute = lambda which, ordinal: answer if which == order else 1
gpu._enter = lambda ordinal: None
gpu.driver.cuDeviceGetName = lambda *_: (SUCCESS, b"a GPU")
gpu.driver.cuDeviceTotalMem = lambda *_: (SUCCESS, 1 << 36)
gpu.driver.cuDeviceGetPCIBusId = lambda *_: (SUCCESS, b"0000:01:00.0")
for answer in (0, 100, 200):
    print(gpu.bind(0).in_order)
"""
    assert on_gpus(program) == (0, "False\nTrue\nTrue\n", "")


def test_where_the_cards_engine_runs():
    """It takes all of a spare GPU, but a share of one that PEs or other MPS clients may use."""
    program = """
pe = gpu.GPU(0, "GPU-0", "a GPU", 1 << 36, False, "0000:01:00.0", True)
for used, device, sms in (({"GPU-0"}, None, 0), ({"GPU-0"}, None, 40), ({"GPU-0", "GPU-1"}, None, 0), ({"GPU-0", "GPU-1"}, 1, 66)):
    print(gpu.place_engine(pe, used, device, sms))
under_mps.add(1)
print(gpu.place_engine(pe, {"GPU-0"}, None, 0))
gpu.place_engine(pe, {"GPU-0"}, 2, 0)
"""
    status, out, err = on_gpus(program)
    assert out.splitlines() == ["(1, 0, 0)", "(1, 40, 0)", "(0, 33, 25)", "(1, 66, 50)", "(1, 33, 25)"]
    assert (status, err.splitlines()[-1]) == (1, "pgas.PgasError: PGAS_SOFTHCA_DEVICE=2: 2 GPU(s) are visible to PE 0, 0 to 1")


def test_a_thread_without_a_gpu_gets_the_selected_one():
    """Numba would give it GPU 0, where the streams and kernels of a PE on another GPU are invalid."""
    program = """
import contextlib
from pgas.kernels.compiler import numba_cuda

numba_cuda.cuda.select_device = lambda ordinal: None
numba_cuda.devices._Runtime.get_or_create_context, found = lambda runtime, ordinal: ordinal, numba_cuda.devices._Runtime()
numba_cuda.driver.get_active_context = lambda: contextlib.nullcontext(False)
numba_cuda.select_device(1)
print(found._get_or_create_context_uncached(None))
"""
    assert on_gpus(program) == (0, "1\n", "")


def test_options_reach_the_compiler():
    """numba-cuda loses some if it gets them before the function."""
    program = """
import pgas
import pgas.kernels.compiler.numba_cuda as compiler

kernel = pgas.jit(lambda a: None, fastmath=True, lto=False, launch_bounds=256)
print([compiler.options_of(kernel.dispatcher)[name] for name in ("fastmath", "lto", "launch_bounds")])
"""
    assert on_gpus(program) == (0, "[True, False, 256]\n", "")


LAUNCH = """
import contextlib, sys
from types import SimpleNamespace
import pgas

jit, gpu_streams = sys.modules["pgas.api.jit"], sys.modules["pgas.job.paths.gpu_streams"]
attributes = SimpleNamespace(max_threads_per_block=896, num_regs=72)
gpu_streams.compiled_for = lambda dispatcher, args: SimpleNamespace(kernel=SimpleNamespace(attributes=attributes))
gpu_streams.Device = lambda: SimpleNamespace(properties=SimpleNamespace(max_threads_per_block=1024))

job = SimpleNamespace(
    launching=lambda *_: None, together=lambda call, step, value, failed_there: (step(), [value]), making=contextlib.nullcontext
)
job.teams = SimpleNamespace(check=lambda handles: None)
jit.runtime.current = lambda: job
gpu_streams.loading_allowed = contextlib.nullcontext

@pgas.jit
def wide(out):
    pass

def refused(*args):
    raise RuntimeError({error!r})

configured = wide[4, (32, {y})]
configured._launch._configured = refused
{launch}
"""


def test_repeated_launches_go_to_the_driver():
    """All blocks run concurrently. A new thread, whose launch the driver rejects, makes the GPU current and launches again."""
    program = """
from types import SimpleNamespace
import pgas
from pgas.job.paths import gpu_streams
from pgas.kernels.compiler import launches

class Dispatcher:
    _launch_config_sensitive = False
    def __getitem__(self, configuration):
        return SimpleNamespace(_is_kernel_launch_config_sensitive=lambda: False, pre_launch_callbacks=[])

def launching(function, *arguments):
    print("launch", arguments[:6])
    return (status.pop(),)

status = [0]
kernel = SimpleNamespace(plain=True, cooperative=False, kernel=SimpleNamespace(handle=7))
gpu_streams.compiled_for = lambda dispatcher, args: kernel
gpu_streams.core_stream = lambda stream: SimpleNamespace(handle=0)
gpu_streams.compiler = SimpleNamespace(enter_device=lambda: print("enter"))
launches.driver.cuLaunchCooperativeKernel = launching
repeatable = gpu_streams.CooperativeLaunches(Dispatcher(), "kernel", (2, 32, 0, 0))
print(repeatable.ready((1, 2.0)))
repeatable.learn((1, 2.0))
print(repeatable.ready((1, 2)))
repeatable.ready((3, 4.0))()
status += [0, 201]
repeatable.ready((3, 4.0))()
"""
    launch = "launch (2, 1, 1, 32, 1, 1)\n"
    assert on_gpus(program) == (0, f"None\nNone\n{launch}{launch}enter\n{launch}", "")


OUT_OF_RESOURCES = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: This indicates that a launch did not occur"


@pytest.mark.parametrize(
    "launch",
    ["pgas.launch(wide, 4, (32, 32), (1,))", *(pytest.param(f"configured{call}", marks=pytest.mark.slow) for call in ("(1)", ".bind(1)"))],
)
def test_blocks_whose_threads_take_too_many_registers(launch):
    status, _, err = python(LAUNCH.format(error=OUT_OF_RESOURCES, y=32, launch=launch), NUMBA_ENABLE_CUDASIM="0")
    assert status == 1
    assert err.splitlines()[-1] == (
        "ValueError: wide is compiled for blocks of at most 896 threads, of 72 registers each, not 1024; "
        "compile it with @pgas.jit(launch_bounds=1024)"
    ), err


@pytest.mark.parametrize(("error", "y"), [(OUT_OF_RESOURCES, 28), ("CUDA_ERROR_INVALID_VALUE: no", 32)])
def test_other_errors_of_a_launch_are_left_alone(error, y):
    status, _, err = python(LAUNCH.format(error=error, y=y, launch="configured(1)"), NUMBA_ENABLE_CUDASIM="0")
    assert (status, err.splitlines()[-1]) == (1, f"RuntimeError: {error}")


def test_copies_are_made_with_this_pes_gpu():
    """Also in a thread that has no GPU, or another one. An error names the call, and leaves that thread's GPU current."""
    program = """
from types import SimpleNamespace
from pgas.job.paths import gpu_streams
driver, context = gpu_streams.driver, [5]
gpu_streams.home = 5
driver.cuCtxGetCurrent = lambda: (SUCCESS, context[-1])
driver.cuCtxPushCurrent = lambda given: (SUCCESS, context.append(int(given)))[:1]
driver.cuCtxPopCurrent = lambda: (SUCCESS, context.pop())
answers = [SUCCESS, SUCCESS, SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_VALUE]

def memcpy(to, source, nbytes, stream):
    print(context[-1], int(to), int(source), nbytes, int(stream))
    return (answers.pop(0),)

driver.cuMemcpyAsync = memcpy
copy = gpu_streams.copying("put", 16, 32, 64, SimpleNamespace(ptr=7))
for context[:] in ([5], [0], [9], [9]):
    try:
        copy()
    except Exception as error:
        print(error)
    print(context)
"""
    status, out, err = on_gpus(program)
    assert (status, err) == (0, "")
    copied = "5 16 32 64 7"
    error = "pgas.put of 64 bytes: CUDA_ERROR_INVALID_VALUE (a sentence)"
    assert out.splitlines() == [copied, "[5]", copied, "[0]", copied, "[9]", copied, error, "[9]"]
