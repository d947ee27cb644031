"""nvshmem4py's functions of the host, over the public functions of pgas. A stream may be omitted: then the call is immediate."""

from typing import Any, NoReturn

from pgas.nvshmem.core import device as device
from pgas.nvshmem.core.memory import *
from pgas.nvshmem.core.operations import *
from pgas.nvshmem.core.setup import *
from pgas.nvshmem.core.teams import *

#: What a program may notice, by name.
DIFFERS = {
    "NvshmemError": "is `pgas.PgasError`",
    "NvshmemInvalid": "is `ValueError`; wrong types are a `TypeError`",
    "NvshmemResource": "only the type of `buffer(...).memory_resource`; has no methods",
    "SignalOp": "the numbers are those of pgas, 0 and 1",
    "array": "without CuPy, the array is a `SymmetricArray` of pgas; in the simulator, it has NumPy's operators",
    "buffer": "memory whose buffer is deleted without `free` stays until `finalize`, which warns",
    "init": 'also takes `process_group=`, with the method `"process_group"`',
    "team_init": "all PEs of the job must call it together; PEs with the same `uniqueid` form a team",
    "tensor": "in the simulator, the tensor is in CPU memory, and kernels do not accept it",
}

_KINDS = ("array", "buffer", "tensor")
_OF_KERNELS = "only for kernels that are not compiled by Numba, which pgas does not support; remove the call"
_MULTICAST = device.numba.MISSING["get_multicast_array"]
_EXTERNAL = "symmetric memory comes from pgas; use nvshmem.core.buffer, or pgas.register(array) for a local operand"

#: What pgas lacks, and what to use instead.
MISSING = {
    **dict.fromkeys(("library_init", "library_finalize", "module_init", "module_finalize"), _OF_KERNELS),
    **dict.fromkeys(("DeviceLibLanguage", "NvshmemKernelObject", "find_device_bitcode_library"), _OF_KERNELS),
    **{f"get_multicast_{kind}": _MULTICAST for kind in _KINDS},
    **{f"{verb}_external_{kind}": _EXTERNAL for verb in ("register", "unregister") for kind in _KINDS},
    "ask_smem": device.numba.MISSING["ask_smem"],
}


def __getattr__(name: str) -> Any:
    if name not in MISSING:
        raise AttributeError(f"module 'nvshmem.core' has no attribute {name!r}")

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"nvshmem.core.{name}: {MISSING[name]}")

    return missing
