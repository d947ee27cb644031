"""PyTorch's communication in a job of pgas: a process group over NCCL, and collectives by NCCL and by symmetric memory, in CUDA graphs."""

import datetime
import importlib
import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pgas
from pgas.perftests.harness.collectives import COLLECTIVES

__all__ = ["LAUNCHES", "Peers", "attempted", "device_of_torch", "graph_seconds", "nccl_group", "torch_with_nccl"]

T = TypeVar("T")

#: Number of timed launches of a graph.
LAUNCHES = 3


def device_of_torch() -> Any:
    """Return the GPU that pgas assigned to this PE as PyTorch's current device. Collective."""
    torch = importlib.import_module("torch")
    word = pgas.zeros(1, "float32")
    device = torch.from_dlpack(word).device
    pgas.free(word)
    torch.cuda.set_device(device)
    return device


def nccl_group(job: Any, empty: Callable[..., Any]) -> tuple[Any, str]:
    """Return torch.distributed with a group of all PEs over NCCL, or None and the reason. Collective.

    Args:
        empty: function that makes an array of PyTorch.
    """
    if pgas.SIMULATOR:
        return None, "there is no GPU"
    if len({(pe.node, pe.gpu) for pe in job.pes}) < job.n_pes:
        return None, "it does not let PEs share a GPU"
    distributed: Any = importlib.import_module("torch.distributed")
    why = _any("" if distributed.is_available() and distributed.is_nccl_available() else "this PyTorch was built without it")
    if why:
        return None, why
    limit = datetime.timedelta(seconds=60)
    host = "127.0.0.1" if len({pe.node for pe in job.pes}) == 1 else pgas.broadcast_object(os.uname().nodename)

    def store(port: int, *, master: bool) -> Any:
        return distributed.TCPStore(host, port, job.n_pes, is_master=master, timeout=limit, wait_for_workers=False)

    first, why = attempted(lambda: store(0, master=True) if job.my_pe == 0 else None)
    if why:
        return None, why
    port = pgas.broadcast_object(first and first.port)

    def join() -> None:
        distributed.init_process_group(
            "nccl", store=first or store(port, master=False), rank=job.my_pe, world_size=job.n_pes, timeout=limit
        )
        distributed.all_gather_into_tensor(empty(job.n_pes, 8), empty(1, 8))  # makes the connections
        pgas.synchronize()

    _, why = attempted(join)
    return (None, why) if why else (distributed, "")


def torch_with_nccl(job: Any) -> tuple[Any, Any, Any, str]:
    """Return PyTorch, this PE's device, and torch.distributed with a group of all PEs over NCCL; or None and the reason. Collective."""
    why = _any("" if pgas.SIMULATOR or importlib.util.find_spec("torch") else "PyTorch is not installed")
    if why:
        return None, None, None, why
    torch: Any = None
    device: Any = None
    if not pgas.SIMULATOR:
        torch, device = importlib.import_module("torch"), device_of_torch()
    group, why = nccl_group(job, lambda *shape: torch.empty(shape, device=device))
    return torch, device, group, why


def attempted(call: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a call returns, and why it failed on some PE, or an empty string. Collective."""
    result, why = None, ""
    try:
        result = call()
    except Exception as error:  # of any class: the rest is measured without it
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    return result, _any(why)


def graph_seconds(torch: Any, stream: Any, call: Callable[[], Any], iters: int) -> float:
    """Return the seconds of a call in a graph of ``iters`` calls: the median of LAUNCHES launches after one to warm up. Collective."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(iters):
            call()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    with torch.cuda.stream(stream):
        for _ in range(1 + LAUNCHES):
            torch.cuda.synchronize()
            pgas.barrier_all()
            pgas.sync_all(stream=stream)
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            found.append(float(start.elapsed_time(stop)))
    return statistics.median(found[1:]) / 1e3 / iters


def _any(why: str) -> str:
    """Return a reason that some PE has, or an empty string. Collective."""
    return next((f"PE {pe}: {each}" for pe, each in enumerate(pgas.allgather_object(why)) if each), "")


class Peers:
    """Collectives of float32 by PyTorch's libraries, captured into a CUDA graph. Collective, like measure().

    Attributes:
        missing: by library, why it is not measured.
        version: of PyTorch and NCCL; empty without them.
    """

    def __init__(self, job: Any) -> None:
        self._job, self.version = job, ""
        self._torch, self._device, self._group, why = torch_with_nccl(job)
        self.missing = dict.fromkeys(("NCCL", "symmetric memory"), why) if why else {}
        if self._group is not None:
            self._stream = self._torch.cuda.Stream()
            self.version = f"PyTorch {self._torch.__version__}, NCCL {'.'.join(map(str, self._torch.cuda.nccl.version()))}"

    def measure(self, name: str, size: int, iters: int) -> Iterator[tuple[str, str, float]]:
        """Yield library, function, and the seconds of a call on the slowest PE, of those that are there. Wrong data is an error.

        Args:
            name: collective, or barrier.
            size: bytes of the message, like CollectiveMessage.size.
            iters: number of calls in the graph.
        """
        for library, function in (("NCCL", ""), ("symmetric memory", "one_shot_all_reduce"), ("symmetric memory", "two_shot_all_reduce_")):
            if library in self.missing:
                continue
            seconds, why = attempted(lambda: self._checked(name, size, library, function, iters))  # noqa: B023
            if why:
                self.missing[library] = f"{name} of {size} B: {why}"
            elif seconds is not None:
                yield library, function or name, max(pgas.allgather_object(seconds))

    def close(self) -> None:
        """End the process group."""
        if self._group is not None:
            self._group.destroy_process_group()

    def _nccl(self, name: str, size: int) -> tuple[Callable[[], Any], Any, list[int]] | None:
        """Return a call that returns its result, its source, and the elements of the result's parts if those of source are PE + 1."""
        if name == "barrier":  # that of NCCL waits on the host
            return None
        n, group, moves = self._job.n_pes, self._group, COLLECTIVES[name]
        nelems = size // 4 // (n if moves.scales else 1)
        source, dest = (
            self._torch.empty(nelems * (n if parts else 1), device=self._device) for parts in (moves.parts_of_source, moves.parts_of_dest)
        )
        each, total = list(range(1, n + 1)), [n * (n + 1) // 2]
        return {
            "alltoall": (lambda: (group.all_to_all_single(dest, source), dest)[1], source, each),
            "fcollect": (lambda: (group.all_gather_into_tensor(dest, source), dest)[1], source, each),
            "broadcast": (lambda: (group.broadcast(source, 0), source)[1], source, [1]),
            "reduce": (lambda: (group.all_reduce(source), source)[1], source, total),
            "reducescatter": (lambda: (group.reduce_scatter_tensor(dest, source), dest)[1], source, total),
        }[name]

    def _symmetric(self, name: str, size: int, function: str) -> tuple[Callable[[], Any], Any, list[int]] | None:
        if name not in ("reduce", "barrier"):
            return None
        memory: Any = importlib.import_module("torch.distributed._symmetric_memory")
        group, n = self._group.group.WORLD, self._job.n_pes
        source = memory.empty(max(4, size // 4), dtype=self._torch.float32, device=self._device)
        handle = memory.rendezvous(source, group=group)
        if name == "barrier":
            return (lambda: handle.barrier(channel=0), source, []) if function.startswith("one") else None
        reduce = getattr(self._torch.ops.symm_mem, function)
        return lambda: reduce(source, "sum", group.group_name), source, [n * (n + 1) // 2]

    def _checked(self, name: str, size: int, library: str, function: str, iters: int) -> float | None:
        """Return the seconds of a call in a graph, after a call whose result is checked; None if the library has no such call."""
        prepared = self._nccl(name, size) if library == "NCCL" else self._symmetric(name, size, function)
        if prepared is None:
            return None
        (call, source, expected), torch = prepared, self._torch
        source.fill_(self._job.my_pe + 1)
        torch.cuda.synchronize()
        pgas.barrier_all()
        with torch.cuda.stream(self._stream):
            result = call()
        torch.cuda.synchronize()
        for part, value in zip(result.chunk(len(expected)) if expected else (), expected, strict=True):
            if not bool((part == value).all()):
                raise ValueError(f"a result has other elements than {value}")
        source.zero_()  # so that sums in place stay finite
        torch.cuda.synchronize()
        return graph_seconds(torch, self._stream, call, iters)
