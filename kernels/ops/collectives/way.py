"""What the collectives ask of the way between members: near.py is one by loads and stores, far.py one over the job's path to far PEs."""

from typing import Any, Protocol

from pgas.kernels.ops.collectives.reduction import Combine
from pgas.kernels.scope import Scope

__all__ = ["Way"]


class Way(Protocol):
    """Device functions for the threads of a scope.

    ``c`` is (address of the channel, team's entry). Each function is called by all threads of the scope, which has met before. What is
    received is in dest for all threads after finish().
    """

    def begin(self, scope: Scope) -> Any:
        """Make ``begin(op, c)``: return the epoch (channel.begin)."""

    def finish(self, scope: Scope, *, one_sided: bool = False) -> Any:
        """Make ``finish(op, c, epoch)`` (channel.finish)."""

    def leave(self, scope: Scope) -> Any:
        """Make ``leave(op, c, epoch)``: finish() after meet()."""

    def meet(self, scope: Scope, *, completes: bool) -> Any:
        """Make ``meet(op, c, epoch)``: wait until all members are here. completes: their operations before are complete then."""

    # Through staging, up to window.LL_BYTES a pair. Every member sends and receives.

    def send_same(self, scope: Scope, unit: int) -> Any:
        """Make ``send(op, c, epoch, source, nbytes)``: the same to every other member."""

    def send_each(self, scope: Scope, unit: int) -> Any:
        """Make ``send(op, c, epoch, source, step, nbytes)``: what lies at source + q * step to each other member q."""

    def send_words(self, scope: Scope, values: Any) -> Any:
        """Make ``send(op, c, epoch, request)``: ``values(q, request)``, two words, to each other member q."""

    def collect(self, scope: Scope) -> Any:
        """Make ``collect(op, c, epoch)``: between sending and word()."""

    def collect_of(self, scope: Scope) -> Any:
        """Make ``collect(op, c, epoch, q)``: the same where only member q has sent."""

    def release(self, scope: Scope) -> Any:
        """Make ``release(c)``: after collect(), the source of send_same() may be overwritten by what comes from word()."""

    def word(self) -> Any:
        """Make ``word(op, c, epoch, q, i)``: word i of what member q has sent to this one."""

    # Between operands.

    def push(self, scope: Scope, unit: int, piece: Any) -> Any:
        """Make ``push(op, c, epoch, request)``: every member writes a piece to every member, also to itself.

        ``piece(c, q, request)`` returns the address of the piece for member q in its dest, that of its source here, and the bytes.
        """

    def share(self, scope: Scope, unit: int) -> Any:
        """Make ``share(op, c, epoch, dest, source, nbytes)``: an fcollect."""

    def spread(self, scope: Scope, unit: int) -> Any:
        """Make ``spread(op, c, epoch, dest, source, nbytes, root)``: a broadcast."""

    def reduce(self, scope: Scope, unit: int, combine: Combine) -> Any:
        """Make ``reduce(op, c, epoch, dest, source, nbytes)``: an all-reduce. Return the epoch of its last round."""

    def reducescatter(self, scope: Scope, unit: int, combine: Combine) -> Any:
        """Make ``reducescatter(op, c, epoch, dest, source, nbytes)``: nbytes of dest. Return the epoch of its last round."""
