"""The launches of kernels: to which of the host's an event in a kernel belongs.

A GPU numbers its grids in the order of launches, but also counts kernels of other libraries, so that only differences of the numbers are
those of launches. The simulator runs a kernel during its launch.
"""

from bisect import bisect_right

from pgas.base import events
from pgas.trace.reading import Event, TracedPE


def launches(pe: TracedPE) -> dict[int, Event]:
    """Return the host's launches by the number of the launch in events of kernels."""
    first: dict[int, int] = {}
    for event in pe.events:  # They are in the order of their beginnings.
        if event.in_kernel:
            first.setdefault(event.launch, event.begin)
    made = [event for event in pe.events if event.code == events.LAUNCHED]
    begins = [launch.begin for launch in made]
    found, previous, at = dict[int, Event](), 0, -1
    for number in sorted(first):
        latest = bisect_right(begins, first[number]) - 1  # The launch began before the first event of its kernel.
        expected = at + (number - previous) if at >= 0 else latest
        at = min(max(expected, at + 1), latest)
        if at < 0:
            continue
        found[number], previous = made[at], number
    return found
