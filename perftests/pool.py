"""Steps on the GPUs of a machine: in turn on all of them, or several at once on each; what has passed is kept in a file.

A step that fails beside others is tried again by itself: under MPS the fault of one client ends all that share its server.
"""

import contextlib
import json
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

from pgas.perftests import jobs

__all__ = ["Outcome", "Pool", "Step"]

#: Lines shown of what a step said that failed beside others.
_SHOWN = 40

#: Variables of steps that share a GPU: software cards are on it, and take their part of it, not a third each.
_SHARING = {"PGAS_SOFTHCA_SMS": "8", "PGAS_SOFTHCA_DEVICE": ""}


@dataclass(frozen=True)
class Step:
    """A command under a name of its own, the seconds it may take, and its variables."""

    name: str
    command: Sequence[str]
    seconds: float
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """Names of steps, by what became of them: ``left`` is what time did not allow, ``before`` what had passed already."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)


class Pool:
    """Performs steps until its time is over.

    Args:
        kept: the JSON file of what became of steps: what has passed is not performed again, what has failed comes last. What steps say
            that share() performs is kept beside it, in the folder of that name without its suffix, a file a step, and one if it is tried
            again.
        of: what is tested, and where; what is kept of something else does not count.
        seconds: the time from now on. None: as long as the steps may take.
        gpus: UUIDs of the GPUs that share() uses.
        at_once: steps at once on each of them. 0: one step at a time, on all GPUs.
    """

    def __init__(self, kept: Path, of: str, seconds: float | None = None, gpus: Sequence[str] = (), at_once: int = 0) -> None:
        self.outcome = Outcome()
        self._kept, self._of, self._gpus, self._at_once = kept, of, gpus, at_once
        self._end = float("inf") if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        #: Whether a run of the same was ended by its time.
        self.goes_on = found.get("of") == of
        self._before: list[str] = found["passed"] if self.goes_on else []
        self._last: list[str] = found["others"] if self.goes_on else []
        self._first = True  # nothing was performed yet in this time
        self._said = kept.with_suffix("")
        if not self.goes_on:
            for path in self._said.glob("*.txt"):
                path.unlink()

    def in_turn(self, steps: Iterable[Step]) -> None:
        """Perform steps one after the other, on all GPUs; what they say is this process's output."""
        for step in self._wanted(steps):
            self._settle(step, self._perform(step))

    def share(self, steps: Iterable[Step]) -> None:
        """Perform steps side by side, each on one GPU under MPS; what one says is shown when it has ended."""
        if not self._at_once:
            self.in_turn(steps)
            return
        again, ended = deque[Step](), threading.Event()
        free: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()

        def work(step: Step) -> None:
            place = free.get()
            try:
                became = "left" if ended.is_set() else self._perform(step, place)
            finally:
                free.put(place)
            if became == "failed":
                again.append(step)
            else:
                self._settle(step, became)

        with contextlib.ExitStack() as daemons:
            places = [{**daemons.enter_context(jobs.mps(gpu)), **_SHARING} for gpu in self._gpus] * self._at_once
            for place in places:
                free.put(place)
            # An interrupted Thread.join() takes its thread for ended in Python 3.11 and 3.12 (bpo-45274): only the executor joins.
            with futures.ThreadPoolExecutor(len(places)) as executor:
                try:
                    for _ in executor.map(work, self._wanted(steps)):
                        pass
                except BaseException:  # a signal
                    ended.set()
                    while free.qsize() < len(places):
                        jobs.end_running()
                        time.sleep(0.01)
                    raise
        if again:
            with jobs.mps(self._gpus[0]) as place:
                for step in again:
                    self._settle(step, self._perform(step, {**place, **_SHARING}, "-again"))

    def _wanted(self, steps: Iterable[Step]) -> list[Step]:
        """Return what has not passed before: what was never begun, what time did not allow, what has failed."""
        steps = list(steps)
        self.outcome.before += [step.name for step in steps if step.name in self._before]
        order = {name: place for place, name in enumerate(self._last, 1)}
        return sorted((step for step in steps if step.name not in self._before), key=lambda step: order.get(step.name, 0))

    def _perform(self, step: Step, place: Mapping[str, str] | None = None, again: str = "") -> str:
        """Run a step, and return in which list of Outcome it belongs."""
        began = time.monotonic()
        if began >= self._end:
            return "left"
        first, self._first = self._first, False
        seconds, variables = min(step.seconds, self._end - began), {**step.variables, **(place or {})}
        if place is None:
            passed = jobs.run(step.command, seconds, variables)
        else:
            path = self._said / f"{step.name.replace(' ', '-').replace('/', '-')}{again}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                passed = jobs.run(step.command, seconds, variables, file)
            said = path.read_text(encoding="utf-8", errors="replace").splitlines()
            shown = " ".join(said[-1:]) if passed else "\n".join([str(path), *said[-_SHOWN:]])
            print(f"{step.name}: {'passed' if passed else 'failed'} after {time.monotonic() - began:.0f} s: {shown}", flush=True)
        if passed:
            return "passed"
        # What had the whole time to itself would not end in the next part either.
        return "left" if seconds < step.seconds and time.monotonic() >= self._end and not first else "failed"

    def _settle(self, step: Step, became: str) -> None:
        with self._lock:
            found = self.outcome
            getattr(found, became).append(step.name)
            kept = {"of": self._of, "passed": [*self._before, *found.passed], "others": [*found.left, *found.failed]}
            self._kept.parent.mkdir(exist_ok=True)
            beside = self._kept.with_suffix(".new")
            beside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, self._kept)
