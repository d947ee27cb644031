"""The alignment of the PEs' clocks: from the times of exchanges among all PEs, and from a GPU's answers to questions for its time.

No PE leaves an exchange before every PE has entered it. If PE i entered at e_i and left at l_i, each in its own clock, then

    e_j - l_i  <=  (clock of j) - (clock of i)  <=  l_j - e_i

The tightest bounds of several exchanges give an estimate, and half their distance is its error. PEs on one machine share a clock, so that
nothing must be estimated. Exchanges at the beginning and at the end of a job also give the drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Exchanges = list[tuple[int, int]]


@dataclass(frozen=True)
class GpuClock:
    """A comparison of a GPU's timer with its host's clock, in ns."""

    at: int  #: host's time of the comparison
    offset: int  #: to add to the GPU's time
    error: int


@dataclass(frozen=True)
class _Line:
    """A correction of times that changes linearly: knots (time, offset), of which the first holds before it and the last after it."""

    times: tuple[int, ...] = (0,)
    offsets: tuple[int, ...] = (0,)
    error: float = 0.0

    def apply(self, times: np.ndarray) -> np.ndarray:
        # Only differences are floats, because a GPU's time has more than 53 bits.
        first, offset = self.times[0], self.offsets[0]
        change = np.interp(times - first, [t - first for t in self.times], [o - offset for o in self.offsets])
        return times + offset + np.rint(change).astype(np.int64)


@dataclass(frozen=True)
class Alignment:
    """Corrections of the clocks of PEs, in their order: to the host's clock of the first PE."""

    hosts: tuple[_Line, ...]
    gpus: tuple[_Line, ...]

    def aligned(self, index: int, times: np.ndarray, *, on_gpu: bool) -> np.ndarray:
        """Return times in ns. on_gpu: whether they are of kernels."""
        times = times.astype(np.int64)
        return self.hosts[index].apply(self.gpus[index].apply(times) if on_gpu else times)

    def error(self, index: int) -> float:
        """Return the largest error in ns of a PE's times compared with those of the first PE."""
        own = self.hosts[index].error + self.gpus[index].error
        return own if index == 0 else own + self.gpus[0].error


def align(pes: Sequence[tuple[str, Sequence[Exchanges], Sequence[GpuClock]]]) -> Alignment:
    """Return the alignment of PEs, each given by its machine (boot ID), its groups of exchanges, and comparisons with its GPU."""
    first_machine, first_groups, _ = pes[0]
    hosts = []
    for machine, groups, _ in pes:
        hosts.append(_Line() if machine == first_machine else _between(groups, first_groups))
    return Alignment(tuple(hosts), tuple(_of_gpu(clocks) for _, _, clocks in pes))


def bounds(mine: Exchanges, theirs: Exchanges) -> tuple[int, int]:
    """Return bounds of what must be added to my clock to get theirs, from the same exchanges on both sides."""
    pairs = list(zip(mine, theirs, strict=False))
    low = max(entered - my_left for (_, my_left), (entered, _) in pairs)
    high = min(left - my_entered for (my_entered, _), (_, left) in pairs)
    return low, high


def _between(mine: Sequence[Exchanges], theirs: Sequence[Exchanges]) -> _Line:
    times, offsets, error = list[int](), list[int](), 0.0
    for my_group, their_group in zip(mine, theirs, strict=False):  # A PE that was killed has no exchanges at the end.
        if my_group and their_group:
            low, high = bounds(my_group, their_group)
            times.append(my_group[-1][1])
            offsets.append((low + high) // 2)
            error = max(error, (high - low) / 2)
    return _Line(tuple(times), tuple(offsets), error) if times else _Line()


def _of_gpu(clocks: Sequence[GpuClock]) -> _Line:
    if not clocks:
        return _Line()
    # The knots are times of the GPU.
    times = tuple(clock.at - clock.offset for clock in clocks)
    return _Line(times, tuple(clock.offset for clock in clocks), float(max(clock.error for clock in clocks)))
