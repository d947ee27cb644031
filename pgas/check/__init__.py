"""The order checker: finds missing fences, waits, and barriers of a program in the simulator, by happens-before (docs/order.md)."""

import os
from pathlib import Path

from pgas.base import config
from pgas.base.errors import PgasError
from pgas.kernels.compiler import cpu


def start() -> None:
    """Record this process from now on, for PGAS_CHECK=order.

    Raises:
        PgasError: if kernels run on a GPU, or PGAS_CHECK_LOGS does not name a folder.
    """
    if cpu is None:  # Kernels run on GPUs.
        raise PgasError("PGAS_CHECK=order works in the simulator only: also set NUMBA_ENABLE_CUDASIM=1, or run python -m pgas.check")
    from pgas.check import record, verdict

    folder = config.read("PGAS_CHECK_LOGS")
    if not folder:
        verdict.install()
    elif os.path.isdir(folder):
        from pgas.check import replay

        (replay.follow if replay.is_planned(Path(folder)) else record.install)(Path(folder))
    else:
        raise PgasError(f"PGAS_CHECK_LOGS must name a folder, which {folder!r} is not; python -m pgas.check makes one")
