"""The order checker: finds missing fences, waits, and barriers of a program in the simulator, by happens-before (docs/order.md)."""

import os

from pgas.base.errors import PgasError
from pgas.kernels.compiler import cpu


def start(folder: str) -> None:
    """Record this process from now on into a folder (PGAS_CHECK).

    Raises:
        PgasError: if kernels run on a GPU, or folder does not name a folder.
    """
    if cpu is None:  # Kernels run on GPUs.
        raise PgasError("PGAS_CHECK works in the simulator only: also set NUMBA_ENABLE_CUDASIM=1, or run python -m pgas.check")
    if not os.path.isdir(folder):
        raise PgasError(f"PGAS_CHECK must name a folder, which {folder!r} is not; python -m pgas.check makes one")
    from pgas.check.record import install

    install(folder)
