"""``python -m pgas.nvshmem [-m] PROGRAM ARGUMENTS``: run a program whose ``import nvshmem`` finds pgas.nvshmem.

``python -m pgas.run --as-nvshmem`` runs it on each PE.
"""

import errno
import importlib.util
import os
import runpy
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np

from pgas import nvshmem
from pgas.base.waits import say
from pgas.nvshmem.core import memory, setup
from pgas.sim import cuda_core

#: Modules of nvshmem4py whose names are in other modules here.
_ELSEWHERE = {
    "bindings": setup, "core.utils": memory, "core.interop": memory, "core.interop.cupy": memory, "core.interop.torch": memory,
    **{f"core.{name}": nvshmem.core for name in ("amo", "collective", "direct", "init_fini", "nvshmem_types", "rma")},
}  # fmt: skip


class _Missing(MetaPathFinder):
    """Says what to use instead of a module that pgas lacks."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        """Raise ModuleNotFoundError for a module of nvshmem4py that is imported; importlib.util.find_spec() returns None."""
        if name.startswith("nvshmem.") and sys._getframe(2).f_globals.get("__name__") != "importlib.util":
            told = "pgas lacks this module of nvshmem4py; use nvshmem.core on the host, and nvshmem.core.device.numba in kernels"
            raise ModuleNotFoundError(f"{name}: {told}", name=name)


def install() -> None:
    """Let ``import nvshmem`` find pgas.nvshmem; in the simulator, also let ``cuda.core`` and ``cupy`` find what replaces them."""
    if sys.modules.get("nvshmem") is nvshmem:
        return
    here = {name.removeprefix("pgas."): module for name, module in sys.modules.items() if f"{name}.".startswith("pgas.nvshmem.")}
    sys.modules.update(here)
    for name, module in _ELSEWHERE.items():
        names = getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])
        alias = cuda_core.stand_in(f"nvshmem.{name}", module, __all__=names)
        setattr(sys.modules[f"nvshmem.{name}".rpartition(".")[0]], name.rpartition(".")[2], alias)
    sys.meta_path.append(_Missing())
    if memory.NvshmemResource is cuda_core.MemoryResource:  # in the simulator
        from pgas.nvshmem.core.simulated import SimulatedArray

        cuda_core.install()
        if importlib.util.find_spec("cupy") is None:
            cuda_core.stand_in("cupy", np, ndarray=SimulatedArray)


def main() -> None:
    """Run the program of the command line."""
    install()
    module = sys.argv[1] == "-m"
    sys.argv = sys.argv[2 if module else 1 :]
    if not module and not os.path.exists(sys.argv[0]):
        say(f"{sys.argv[0]}: {os.strerror(errno.ENOENT)}")
        sys.exit(2)  # As for Python itself.
    if module:
        sys.path.insert(0, os.getcwd())  # Like python -m of the program itself; a command of pgas leaves it out.
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
