"""Objects that a process of the simulator pickles in place of its own, for a process that compiles for GPUs (sim/transfer.py)."""

import importlib
from typing import Any

import numba.cuda


class TransferredArray:
    """An array in the memory of a GPU, for the compiler."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "strides": strides, "typestr": typestr, "data": (address, False), "version": 3}


def device_function(function: Any) -> Any:
    """Return a device function."""
    return numba.cuda.jit(device=True)(function)


def attribute(module: str, name: str) -> Any:
    """Return an attribute of a module."""
    return getattr(importlib.import_module(module), name)


def instance(module: str, name: str) -> Any:
    """Return an object of a class with this name. The compiler rejects it with the same error as the real one."""
    return type(name, (), {"__module__": module})()
