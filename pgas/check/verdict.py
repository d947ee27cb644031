"""The report of what a job has done, in its own processes: at their end (PGAS_CHECK=order), or after a test (`pytest_plugin`)."""

import atexit
import contextlib
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgas.base.errors import PgasError
from pgas.base.waits import until
from pgas.check.order import Order
from pgas.check.record import LogPart, Recorder
from pgas.check.record import install as record
from pgas.job import runtime
from pgas.job.bootstrap.processes import flush

#: Time limit for the other PEs to end the same part, in seconds.
_LIMIT_S = 600.0

#: Seconds that a PE which has failed waits for others to end the same part: they may be waiting for this PE.
_FAILED_S = 1.0

_REPORT = "report"

_recorder: Recorder | None = None


def install() -> Recorder:
    """Record this process, and report at its end what no test has reported. Collective if a job is active."""
    global _recorder
    if _recorder is None:
        _recorder = recorder = record(None)
        atexit.register(lambda: _end(recorder))
        show = sys.excepthook

        def on_exception(*exception: Any) -> None:
            show(*exception)
            print(of_failure(recorder), end="", file=sys.stderr, flush=True)

        sys.excepthook = on_exception
    return _recorder


def report(recorder: Recorder) -> str:
    """End the logs of all PEs, and return the report on them, "" if there is none. All PEs must call this, or abstain()."""
    return "\n".join(filter(None, map(_report_on, _ended(recorder))))


def of_failure(recorder: Recorder) -> str:
    """End the logs, because this PE has failed. Return the report on what all PEs have done so far, with a first line that says so."""
    texts = []
    for part in _ended(recorder):
        with contextlib.suppress(PgasError):
            _wait(functools.partial(_all, part, "ended"), part, _FAILED_S)
        texts.append(_judged(part))
        if part.pe == 0:
            _write(part.folder / _REPORT, texts[-1])
        _leave(part)
    text = "\n".join(filter(None, texts))
    return f"pgas: until PE {part.pe} failed, the order checker found:\n{text}\n" if text else ""


def abstain(recorder: Recorder) -> None:
    """End the logs without a report: this PE has failed without one, or what it has done is not to be checked."""
    for part in _ended(recorder):
        if part.pe == 0:
            _write(part.folder / _REPORT, "")
        _leave(part)


def discard() -> None:
    """End the logs without a report if this process is recorded: what it has done is not to be checked. All PEs must call this."""
    if _recorder is not None:
        abstain(_recorder)


def _ended(recorder: Recorder) -> list[LogPart]:
    """End this PE's logs, and return them."""
    if runtime.active():
        recorder.begin()
    parts = list(recorder.parts)
    recorder.restart()
    for part in parts:
        (part.folder / f"{part.pe}.ended").touch()
    return parts


def _report_on(part: LogPart) -> str:
    """Return the report on a part of a job: PE 0 makes it for all."""
    if part.pe == 0:
        _wait(lambda: _all(part, "ended"), part)
        text = "the order checker failed on PE 0"
        try:
            text = _judged(part)
        finally:
            _write(part.folder / _REPORT, text)
    _wait((part.folder / _REPORT).exists, part)
    text = (part.folder / _REPORT).read_text()
    _leave(part)
    return text


def _judged(part: LogPart) -> str:
    """Return the report on the logs of all PEs, "" if nothing in it is certain."""
    findings = Order.of(part.folder).findings
    return findings.text() if findings.certain else ""


def _all(part: LogPart, what: str) -> bool:
    return all((part.folder / f"{pe}.{what}").exists() for pe in range(part.n_pes))


def _wait(over: Callable[[], bool], part: LogPart, seconds: float = _LIMIT_S) -> None:
    limit = time.monotonic() + seconds

    def poll() -> None:
        if time.monotonic() > limit:
            raise PgasError(f"PGAS_CHECK=order: PE {part.pe} has ended its log, and another PE has not within {seconds:g} s")

    until(over, poll)


def _write(path: Path, text: str) -> None:
    """Write a file that others see only when it is complete."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def _leave(part: LogPart) -> None:
    """Delete the logs when all PEs have left them."""
    (part.folder / f"{part.pe}.left").touch()
    if _all(part, "left"):
        shutil.rmtree(part.folder, ignore_errors=True)


def _end(recorder: Recorder) -> None:
    """Print the report on what has not been reported, and exit with status 3 if there is one."""
    if runtime.active():  # The program has failed.
        return
    first = any(part.pe == 0 for part in recorder.parts)
    text = report(recorder)
    for folder in recorder.folders:
        with contextlib.suppress(OSError):  # Another PE has logs there, or has deleted it.
            folder.rmdir()
    if text:
        if first:
            print(text)
        flush()
        os._exit(3)
