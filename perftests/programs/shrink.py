"""Makes a failing program smaller by removing and shortening operations while it still fails."""

from collections.abc import Callable, Iterable

from pgas.perftests.programs.operation import Operation, Program
from pgas.perftests.programs.rules import Rules

#: An operation with its number in the program that was drawn.
Numbered = tuple[int, Operation]


def legal(program: Program, operations: Iterable[Numbered]) -> list[Numbered]:
    """Return the operations that stay defined, because a wait needs its flag, and an access its fence."""
    values: dict[tuple[int, int], list[int]] = {}
    phase, rules, kept = -1, Rules(program.shape, values), []
    for number, o in operations:
        if o.phase != phase:
            phase, rules = o.phase, Rules(program.shape, values)
        if rules.admit(o):
            kept.append((number, o))
    return kept


def shrunk(program: Program, fails: Callable[[list[Numbered]], bool], trials: int) -> list[Numbered]:
    """Return a smaller list of operations that still fails.

    Args:
        fails: function that returns whether a program of some operations fails.
        trials: maximum number of calls of fails.
    """
    best = list(enumerate(program.operations))
    left = trials

    def better(candidate: list[Numbered]) -> bool:
        nonlocal best, left
        candidate = legal(program, candidate)
        if candidate == best or left == 0:
            return False
        left -= 1
        if not fails(candidate):
            return False
        best = candidate
        return True

    for phase in range(program.operations[-1].phase):
        if better([numbered for numbered in best if numbered[1].phase <= phase]):
            break
    size = max(1, len(best) // 2)
    while size and left:
        at, smaller = 0, False
        while at < len(best):
            if better(best[:at] + best[at + size :]):
                smaller = True
            else:
                at += size
        if not smaller or size > 1:
            size //= 2
    for i in range(len(best)):
        for nelems in (1, 2, 4, 16, 64):
            if i >= len(best) or best[i][1].nelems <= nelems:
                break
            number, o = best[i]
            if better([*best[:i], (number, o._replace(nelems=nelems)), *best[i + 1 :]]):
                break
    return best
