"""Compilation of loops, for the CPU or a GPU, with a disk cache that detects a change in any of their modules.

Numba's cache key covers only the source file of the function itself. A loop is spread over several files and takes constants from the
hardware format definitions. Each loop therefore has a free variable with a hash of all these sources (source_stamp), which Numba's key
covers.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import types

from pgas import native
from pgas.base import config
from pgas.base.backend import SIMULATOR
from pgas.kernels import compiler
from pgas.native import cpu
from pgas.transports import mlx5

#: Whether kernels run on a GPU, and whether the engine of the software NIC does: not in the simulator, nor if its kernel only copies data.
KERNELS_ON_GPU = not SIMULATOR
ON_GPU = KERNELS_ON_GPU and config.read("PGAS_ENGINE") != "dma"

#: Marks a function of the engine, which is compiled for the CPU or the GPU that runs the engine.
device = compiler.backend.integer_device if ON_GPU else cpu.on_host


@functools.cache
def source_stamp(*of_caller: str) -> int:
    """Return a number that changes with any source of a loop. of_caller: the sources passed to kernel()."""
    paths = [Path(__file__).parent, *map(Path, (*mlx5.__path__, *compiler.__path__, *native.__path__, *of_caller))]
    sources = [source for path in paths for source in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest()
    return int.from_bytes(digest[:7], "little")


def kernel(make: Callable[[int], Callable[[int], int]], *sources: str) -> Any:
    """Compile a loop, or load it from the disk cache.

    Args:
        make: function of source_stamp() that returns the loop, which must use the stamp, because Numba's key covers the values of free
            variables.
        sources: files and directories of the caller that the loop depends on.
    """
    return cpu.compiled(types.int64(types.int64), make(source_stamp(*sources)))


def keep(kernel_: Any, *sources: str) -> None:
    """Give a CUDA kernel a disk cache, without which every process would compile it for 20 s. sources: see kernel().

    Its code contains none of the job's constants, so they are not in the key. Nor are free variables.

    Raises:
        ValueError: the kernel has free variables.
    """
    if names := compiler.backend.function_of(kernel_).__code__.co_freevars:
        raise ValueError(f"the key of the disk cache does not cover the free variables {', '.join(names)}")
    compiler.backend.keep(kernel_, lambda: (source_stamp(*sources),))
