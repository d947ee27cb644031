"""Steps on the GPUs of a machine: in turn on all of them, or several at once on each; what has passed is kept in a file.

A step that fails beside others is tried again by itself: under MPS the fault of one client ends all that share its server.
"""

import contextlib
import json
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgas.perftests import jobs

__all__ = ["Outcome", "Pool", "Step"]

#: Lines shown of what a step said that failed beside others.
_SHOWN = 40

#: Variables of steps that share a GPU: software cards take their part of it, not a third each.
_SHARING = {"PGAS_SOFTHCA_SMS": "8"}


@dataclass(frozen=True)
class Step:
    """A command under a name of its own, the seconds it may take, and its variables."""

    name: str
    command: Sequence[str]
    seconds: float
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """Names of steps, by what became of them; ``left`` is what time did not allow."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Pool:
    """Performs steps until its time is over.

    Args:
        kept: a JSON list of names that passed; those are not performed again, and others are added.
        seconds: the time from now on. None: as long as the steps may take.
        gpus: UUIDs of the GPUs that share() uses.
        at_once: steps at once on each of them. 0: one step at a time, on all GPUs.
    """

    def __init__(self, kept: Path, seconds: float | None = None, gpus: Sequence[str] = (), at_once: int = 0) -> None:
        self.outcome = Outcome()
        self._kept, self._gpus, self._at_once = kept, gpus, at_once
        self._end = float("inf") if seconds is None else time.monotonic() + seconds
        self._before: list[str] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
        self._lock = threading.Lock()

    def in_turn(self, steps: Iterable[Step]) -> None:
        """Perform steps one after the other, on all GPUs; what they say is this process's output."""
        for step in self._wanted(steps):
            self._settle(step, self._perform(step))

    def share(self, steps: Iterable[Step]) -> None:
        """Perform steps side by side, each on one GPU under MPS; what one says is shown when it has ended."""
        if not self._at_once:
            self.in_turn(steps)
            return
        wanted, again = deque(self._wanted(steps)), deque[Step]()

        def work(place: Mapping[str, str]) -> None:
            with contextlib.suppress(IndexError):
                while True:
                    step = wanted.popleft()
                    became = self._perform(step, place)
                    if became == "failed":
                        again.append(step)
                    else:
                        self._settle(step, became)

        with contextlib.ExitStack() as daemons:
            places = [{**daemons.enter_context(jobs.mps(gpu)), **_SHARING} for gpu in self._gpus]
            threads = [threading.Thread(target=work, args=(place,)) for place in places for _ in range(self._at_once)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if again:
            with jobs.mps(self._gpus[0]) as place:
                for step in again:
                    self._settle(step, self._perform(step, place))

    def _wanted(self, steps: Iterable[Step]) -> list[Step]:
        return [step for step in steps if step.name not in self._before]

    def _perform(self, step: Step, place: Mapping[str, str] | None = None) -> str:
        """Run a step, and return in which list of Outcome it belongs."""
        began = time.monotonic()
        if began >= self._end:
            return "left"
        seconds, variables = min(step.seconds, self._end - began), {**step.variables, **(place or {})}
        if place is None:
            passed = jobs.run(step.command, seconds, variables)
        else:
            with tempfile.TemporaryFile() as file:
                passed = jobs.run(step.command, seconds, variables, file)
                file.seek(0)
                said = file.read().decode(errors="replace").splitlines()
            shown = "\n".join(said[-1:] if passed else said[-_SHOWN:])
            print(f"{step.name}: {'passed' if passed else 'failed'} after {time.monotonic() - began:.0f} s: {shown}", flush=True)
        if passed:
            return "passed"
        return "left" if seconds < step.seconds and time.monotonic() >= self._end else "failed"

    def _settle(self, step: Step, became: str) -> None:
        with self._lock:
            getattr(self.outcome, became).append(step.name)
            if became == "passed":
                self._before.append(step.name)
                self._kept.parent.mkdir(exist_ok=True)
                self._kept.write_text(json.dumps(self._before, indent=1) + "\n", encoding="utf-8")
