"""The transfer strategy between the members of a team: near.py uses loads and stores, far.py the job's path to unmapped PEs."""

from typing import Any, Protocol

from pgas.kernels.collectives.operators import Combine
from pgas.kernels.scope import Scope


class Strategy(Protocol):
    """Device functions for the threads of a scope.

    ``c`` is what channel.channel_of() returns. All threads of the scope call each function, after a barrier. After finish() the
    received data is in dest for all threads.
    """

    def begin(self, scope: Scope) -> Any:
        """Make ``begin(op, c)``: return the epoch (channel.begin)."""

    def finish(self, scope: Scope, *, one_sided: bool = False) -> Any:
        """Make ``finish(op, c, epoch)`` (channel.finish)."""

    def leave(self, scope: Scope) -> Any:
        """Make ``leave(op, c, epoch)``: finish() after barrier(), when no data was sent."""

    def barrier(self, scope: Scope, *, completes: bool) -> Any:
        """Make ``barrier(op, c, epoch)``: wait until all members have arrived. completes: then their earlier operations are complete."""

    # Through staging. Every member sends and receives.

    def staged(self, scope: Scope) -> Any:
        """Return the maximum number of bytes that go through staging from one member to another; window.LL_BYTES or less."""

    def send_same(self, scope: Scope, unit: int) -> Any:
        """Make ``send(op, c, epoch, source, nbytes)``: send the same to every other member."""

    def send_each(self, scope: Scope, unit: int) -> Any:
        """Make ``send(op, c, epoch, source, step, nbytes)``: send nbytes at source + q * step to each other member q."""

    def send_words(self, scope: Scope, values: Any) -> Any:
        """Make ``send(op, c, epoch, request)``: send the two words ``values(q, request)`` to each other member q."""

    def gather(self, scope: Scope) -> Any:
        """Make ``gather(op, c, epoch)``: wait for all members' data, unless word() waits; called between sending and word()."""

    def gather_from(self, scope: Scope) -> Any:
        """Make ``gather(op, c, epoch, q)``: wait for member q's data if only member q has sent."""

    def release(self, scope: Scope) -> Any:
        """Make ``release(c)``, called after gather(): afterwards, the source of send_same() may be overwritten."""

    def word(self) -> Any:
        """Make ``word(op, c, epoch, q, i)``: return word i of member q's data."""

    def four(self) -> Any:
        """Make ``four(op, c, epoch, q, i, step)``: return words i, i + step, i + 2 * step, i + 3 * step of member q's data."""

    def fours(self) -> Any:
        """Make ``fours(op, c, epoch, q, n, i, step)``: return four() of each of the members q to q + 3 below n, except for this member.

        For this member, and from n on, the words have any values. None: call four() for each member.
        """

    # Between operands.

    def exchange(self, scope: Scope, unit: int, piece: Any) -> Any:
        """Make ``exchange(op, c, epoch, request)``: every member writes a piece to every member, including itself.

        ``piece(c, q, request)`` returns the destination address (of this PE's slot), the source address, and the number of bytes of member
        q's piece.
        """

    def fcollect(self, scope: Scope, unit: int) -> Any:
        """Make ``fcollect(op, c, epoch, request)``: an fcollect; request: see call.body_of()."""

    def broadcast(self, scope: Scope, unit: int) -> Any:
        """Make ``broadcast(op, c, epoch, dest, source, nbytes, whole, root)``: a broadcast.

        whole: bytes of the message that this call moves a part of.
        """

    def reduce(self, scope: Scope, unit: int, combine: Combine) -> Any:
        """Make ``reduce(op, c, epoch, dest, source, nbytes)``: an all-reduce. Return the epoch of its last round."""

    def reducescatter(self, scope: Scope, unit: int, combine: Combine) -> Any:
        """Make ``reducescatter(op, c, epoch, dest, source, step, nbytes)``, with the bytes of dest. Return the epoch of its last round.

        step: distance of the members' parts of source.
        """
