"""PyTorch's communication in a job of pgas: a process group over NCCL."""

import datetime
import importlib
import os
from collections.abc import Callable
from typing import Any

import pgas

__all__ = ["device_of_torch", "nccl_group"]


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
    why = "" if distributed.is_available() and distributed.is_nccl_available() else "this PyTorch was built without it"
    store, port, limit = None, 0, datetime.timedelta(seconds=60)
    host = "127.0.0.1" if len({pe.node for pe in job.pes}) == 1 else pgas.broadcast_object(os.uname().nodename)
    if not why and job.my_pe == 0:
        try:
            store = distributed.TCPStore(host, 0, job.n_pes, is_master=True, timeout=limit, wait_for_workers=False)
            port = store.port
        except Exception as error:  # of any class: the rest is measured without NCCL
            why = _first_line(error)
    port, why = pgas.broadcast_object(port), _any(why)
    if why:
        return None, why
    try:
        store = store or distributed.TCPStore(host, port, job.n_pes, is_master=False, timeout=limit, wait_for_workers=False)
        distributed.init_process_group("nccl", store=store, rank=job.my_pe, world_size=job.n_pes, timeout=limit)
        gathered = empty(job.n_pes, 8)
        distributed.all_gather_into_tensor(gathered, empty(1, 8))  # makes the connections
        pgas.synchronize()
    except Exception as error:
        why = _first_line(error)
    why = _any(why)
    return (None, why) if why else (distributed, "")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _any(why: str) -> str:
    """Return a reason that some PE has, or an empty string. Collective."""
    return next((f"PE {pe}: {each}" for pe, each in enumerate(pgas.allgather_object(why)) if each), "")
