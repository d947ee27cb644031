"""Functions of numba.cuda for the host: the simulator has the same ones, with the same parameters, as numba-cuda has for GPUs."""

import ast
import asyncio
import importlib.util
import inspect
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pgas
from pgas import cuda
from pgas.base import model

#: Functions for other processes or libraries on GPUs, and what the simulator refuses.
ONLY_ON_GPUS = {"from_cuda_array_interface", "open_ipc_array", "external_stream"}


def of_gpus():
    """Return numba-cuda's functions for GPUs, by name, from their source, which cannot be imported next to the simulator's."""
    folder = Path(importlib.util.find_spec("numba.cuda").submodule_search_locations[0])
    tree = ast.parse((folder / "api.py").read_text())
    return {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


GIVEN = of_gpus()


@pytest.mark.skipif(not pgas.SIMULATOR, reason="of the simulator")
@pytest.mark.parametrize("name", sorted(GIVEN.keys() - ONLY_ON_GPUS))
def test_parameters(name):
    given = GIVEN[name]
    names = [a.arg for a in given.args] + ["*"] * (given.vararg is not None)
    required = names[: len(given.args) - len(given.defaults)]
    found = inspect.signature(getattr(cuda, name)).parameters.values()
    positional = ["*" if p.kind is p.VAR_POSITIONAL else p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if name == "to_device":
        positional[0] = "obj"  # numba-cuda's simulator calls it ary
    assert positional[: len(names)] == names
    assert [p.name for p in found if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD][: len(required)] == (
        required if name != "to_device" else ["ary"]
    )


def test_events_keep_the_time():
    start, stop, untimed = cuda.event(), cuda.event(timing=True), cuda.event(timing=False)
    stream = cuda.stream()
    start.record(stream)
    time.sleep(0.01)
    stop.record(stream)
    stop.synchronize()
    stop.wait(stream)
    assert stop.query()
    assert 5 <= cuda.event_elapsed_time(start, stop) < 5000
    assert start.elapsed_time(stop) == pytest.approx(cuda.event_elapsed_time(start, stop), rel=0.1)
    untimed.record()
    with pytest.raises(Exception):  # noqa: B017, PT011  On a GPU, an error of the driver.
        cuda.event_elapsed_time(start, untimed)


@pytest.mark.skipif(not pgas.SIMULATOR, reason="the interpreter calls back at once")
def test_streams_call_back():
    stream, called = cuda.stream(), []
    stream.add_callback(lambda *given: called.append(given), "argument")
    assert called == [(stream, 0, "argument")]

    async def done():
        return await stream.async_done()

    assert asyncio.run(done()) is stream


def test_the_device_has_the_attributes_of_a_gpu():
    """Programs choose numbers of blocks by them."""
    device = cuda.get_current_device()
    assert device.compute_capability >= (7, 0)
    assert tuple(device.compute_capability) == (device.COMPUTE_CAPABILITY_MAJOR, device.COMPUTE_CAPABILITY_MINOR)
    assert (device.id, device.WARP_SIZE, device.MAX_THREADS_PER_BLOCK, device.MAX_BLOCK_DIM_Z) == (0, 32, 1024, 64)
    assert device.MULTIPROCESSOR_COUNT == cuda.gpus[0].MULTIPROCESSOR_COUNT > 16
    assert device.name == cuda.current_context().device.name
    assert {name: getattr(device, name) for name in model.ATTRIBUTES}.keys() == model.ATTRIBUTES.keys()
    with pytest.raises(AttributeError, match="NO_SUCH"):
        device.NO_SUCH  # noqa: B018
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total < 1 << 50
    assert int(cuda.stream().handle) >= 0


@cuda.jit
def double(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] *= 2


def test_arrays_of_the_host():
    """Kernels change mapped memory, and copies between pinned memory and the GPU work."""
    host, other = np.arange(4.0), np.arange(4.0)
    with cuda.mapped(host) as array:
        double[1, 32](array)
        cuda.synchronize()
    assert host.tolist() == [0, 2, 4, 6]
    with cuda.mapped(host, other) as arrays:
        assert len(arrays) == 2
    like = cuda.mapped_array_like(host)
    assert (like.shape, like.dtype) == (host.shape, host.dtype)
    with cuda.pinned(host, other):
        device = cuda.to_device(host)
    same = cuda.as_cuda_array(device)
    double[1, 32](same)
    assert device.copy_to_host().tolist() == [0, 4, 8, 12]
    assert (cuda.is_cuda_array(device), cuda.is_cuda_array(host)) == (True, False)
    foreign = SimpleNamespace(__cuda_array_interface__={**host.__array_interface__, "version": 3})
    if pgas.SIMULATOR:
        double[1, 32](cuda.as_cuda_array(foreign))
        assert host.tolist() == [0, 4, 8, 12]
    with pytest.raises(TypeError, match="cuda array interface"):
        cuda.as_cuda_array(host)
