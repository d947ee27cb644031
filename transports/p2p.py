"""The p2p transport on the host: every peer's slot is mapped, so that kernels load and store through it."""

import contextlib
import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports.devices import Device, Port
from pgas.transports.memory import fds
from pgas.transports.memory.protocol import Memory, Segment
from pgas.transports.nic.protocol import Part
from pgas.transports.registry import Setting


class P2P:
    """The transport by loads and stores (registry.Transport)."""

    name = "p2p"
    maps_peers = True
    path = "pgas.kernels.paths.p2p"
    needs = frozenset({"gpu", "peer access"})
    simulated = "through memory that the PEs share", "on GPUs"

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return {}, because its kernels need only the window."""
        return {}

    def why_not(self, device: Device, port: Port) -> str | None:
        return f"carries no transport {self.name}"

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        """Return (), because it needs only the segment of team memory and heap."""
        return ()

    def connect(self, part: Part, setting: Setting) -> None:
        attach_peers(part.memory, part.me, part.segments, part.fds, part.exchange, near_pes=part.near_pes)


def attach_peers(
    memory: Memory,
    me: int,
    segments: tuple[Segment, ...],
    own: list[int],
    allgather: Callable[[object], list[object]],
    undo: contextlib.ExitStack | None = None,
    near_pes: Container[int] | None = None,
) -> None:
    """Map the slots of the near PEs. Collective.

    Args:
        memory: memory that maps them.
        me: this PE.
        segments: the layout of a slot, the same on every PE.
        own: descriptors of this PE's segments.
        allgather: exchange of small values among the PEs.
        undo: stack that receives a callback per segment that unmaps it, for callers that continue after an error.
        near_pes: PEs that map this PE's memory and whose memory this PE maps. Default: all.

    Raises:
        TransportError: some PE could not map some peer; on every PE, and the text names all such pairs.
    """
    reason = None
    for segment, own_fd in zip(segments, own, strict=True):
        for pe, fd in fds.exchange_fds(me, own_fd, allgather, near_pes).items():
            if pe == me:
                continue
            try:
                memory.attach(window.slot(pe) + segment.offset, segment, fd)
                if undo is not None:
                    undo.callback(memory.discard, window.slot(pe) + segment.offset)
            except TransportError as error:
                reason = reason or f"PE {me} cannot reach PE {pe}: {error}"
            finally:
                os.close(fd)
    if failures := [str(r) for r in allgather(reason) if r]:
        raise TransportError("transport p2p: " + "; ".join(failures))
