"""The p2p transport on the host: every peer's slot is mapped, and kernels load and store through it."""

import contextlib
import os
from collections.abc import Callable

from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports.memory import fds
from pgas.transports.memory.protocol import Memory, Segment

__all__ = ["attach_peers", "slot"]


def slot(pe: int) -> int:
    """Return the address of PE pe's slot."""
    return window.BASE + (pe << window.STRIDE_SHIFT)


def attach_peers(
    memory: Memory,
    me: int,
    segments: tuple[Segment, ...],
    own: list[int],
    allgather: Callable[[object], list[object]],
    undo: contextlib.ExitStack | None = None,
) -> None:
    """Map the slots of all other PEs. Collective.

    Args:
        memory: where to map them.
        me: this PE.
        segments: the layout of a slot, the same on every PE.
        own: descriptors of this PE's segments.
        allgather: exchange of small values among the PEs.
        undo: what unmaps what was mapped, for callers that go on after an error.

    Raises:
        TransportError: some PE could not map some peer; raised on every PE, naming all such pairs.
    """
    reason = None
    for segment, own_fd in zip(segments, own, strict=True):
        for pe, fd in enumerate(fds.exchange_fds(me, own_fd, allgather)):
            if pe == me:
                continue
            try:
                memory.attach(slot(pe) + segment.offset, segment, fd)
                if undo is not None:
                    undo.callback(memory.discard, slot(pe) + segment.offset)
            except TransportError as error:
                reason = reason or f"PE {me} cannot reach PE {pe}: {error}"
            finally:
                os.close(fd)
    if failures := [str(r) for r in allgather(reason) if r]:
        raise TransportError("transport p2p: " + "; ".join(failures))
