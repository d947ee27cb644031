"""Which machine runs the kernels of this process: a CUDA GPU, or the simulator.

Decided once, when pgas is imported, because the compiler fixes its own front end at import:

* if numba.cuda is already imported: what numba.cuda chose;
* if ``NUMBA_ENABLE_CUDASIM`` is set: the simulator for 1, a GPU for 0 (without a GPU, kernels can be compiled but not launched);
* otherwise a GPU if the driver finds one, or the simulator; the first process of the job then prints a line at its start.

This module sets ``CUDA_MODULE_LOADING=EAGER`` before CUDA starts: under lazy loading the first launch of a second kernel waits for
the running one, and two PEs whose kernels wait for each other never finish (CUDA C++ Programming Guide, "Lazy Loading"). It also sets
``NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS=0``, because communication kernels intentionally use few blocks.
"""

import ctypes
import os
import sys

from pgas.base.errors import PgasError
from pgas.base.launcher import OWN_VARIABLES, launched_rank

#: CUDA_ERROR_NO_DEVICE.
_NO_DEVICE = 100


def cuda_device_count() -> int:
    """Return the number of GPUs that are visible to this process; 0 if there is no CUDA driver."""
    return _ask_driver()[0]


def _ask_driver() -> tuple[int, str]:
    """Return the number of GPUs, and the name of the error with which the driver did not start; "" if there is no error or no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, ""
    count, name = ctypes.c_int(0), ctypes.c_char_p()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status in (0, _NO_DEVICE) or driver.cuGetErrorName(status, ctypes.byref(name)):
        return count.value, ""
    return 0, (name.value or b"").decode()


def _decide() -> bool:
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    requested = os.environ.get("NUMBA_ENABLE_CUDASIM", "")
    decided = getattr(sys.modules.get("numba.cuda.core.config"), "ENABLE_CUDASIM", None)  # Set if numba.cuda was imported before pgas.
    if decided is not None:
        if not decided and requested != "0" and cuda_device_count() == 0:
            raise PgasError(
                "numba.cuda was imported before pgas, and this machine has no GPU: "
                "import pgas first (it selects the simulator), or set NUMBA_ENABLE_CUDASIM=1"
            )
        return bool(decided)
    if requested:
        return requested != "0"
    count, error = _ask_driver()
    if count > 0:
        return False
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    OWN_VARIABLES.add("NUMBA_ENABLE_CUDASIM")
    global _unsaid
    _unsaid = f"pgas: no CUDA device here{f' ({error})' if error else ''}, kernels run in the simulator"
    return True


def for_children() -> dict[str, str]:
    """Return the environment variable by which child processes make the same choice."""
    return {"NUMBA_ENABLE_CUDASIM": str(int(SIMULATOR))}


def say_where() -> None:
    """Print once, in the first process of a job, that kernels run in the simulator because there is no GPU."""
    global _unsaid
    if _unsaid and launched_rank() in (None, 0):
        print(_unsaid, file=sys.stderr)
    _unsaid = ""


#: Line to print at the start of a job, or "". It is not printed at import, because commands such as doctor do not start a job.
_unsaid = ""

#: Whether kernels of this process run in the simulator.
SIMULATOR: bool = _decide()
