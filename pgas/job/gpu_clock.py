"""The difference between the GPU's timer and the host's clock: a kernel answers the host's questions with the time.

The answer lies between the question and its arrival on the host, so half the shortest round trip is the error.
"""

import functools
import time
from typing import Any

from pgas.base.errors import PgasError
from pgas.base.events import CLOCK_ANSWERED, CLOCK_ASKED, CLOCK_TIME, TraceFile
from pgas.job.paths.platform import platform
from pgas.kernels import window
from pgas.kernels.compiler import backend, constant, ptx, u64

#: Number of questions, and the time in ns after which both sides give up.
_QUESTIONS, _PATIENCE = 64, 2_000_000_000

_ASKED, _ANSWERED, _TIME = (constant(window.TRACE + word) for word in (CLOCK_ASKED, CLOCK_ANSWERED, CLOCK_TIME))
_1, _LAST, _LIMIT = constant(1), constant(_QUESTIONS), constant(_PATIENCE)


def answer_time() -> None:
    """Answer all questions; a kernel of one thread."""
    deadline = ptx.globaltimer() + _LIMIT
    question = _1
    while question <= _LAST and ptx.globaltimer() < deadline:
        if ptx.ld_relaxed_sys_u64(_ASKED) == question:
            ptx.st_relaxed_sys_u64(_TIME, ptx.globaltimer())
            ptx.st_release_sys_u64(_ANSWERED, question)
            question = u64(question + _1)


@functools.cache
def _kernel() -> Any:
    """Return the kernel, which is compiled once for all measurements of a process."""
    return backend.jit(answer_time)


def offset(file: TraceFile) -> dict[str, int]:
    """Return the host's time of the measurement, what to add to the GPU's time to get the host's, and the error, all in ns.

    Raises:
        PgasError: if the kernel does not answer.
    """
    file.set_word(CLOCK_ASKED, 0)
    file.set_word(CLOCK_ANSWERED, 0)
    platform.configured(_kernel(), "answer_time", (1, 1))()
    best: dict[str, int] = {}
    for question in range(1, _QUESTIONS + 1):
        asked = time.monotonic_ns()
        file.set_word(CLOCK_ASKED, question)
        while file.word(CLOCK_ANSWERED) != question:
            if time.monotonic_ns() - asked > _PATIENCE:
                raise PgasError("PGAS_TRACE: the GPU does not answer questions for its time")
        answered, there = time.monotonic_ns(), file.word(CLOCK_TIME)
        if not best or answered - asked < 2 * best["error"]:
            middle = (asked + answered) // 2
            best = {"at": middle, "offset": middle - there, "error": (answered - asked + 1) // 2}
    return best
