"""What the members of a team call, for the messages of errors and waits in collectives.

Every member has the calls of its two neighbors in its own memory (kernels/collectives/comparison.py). A collective compares them only when
it ends. If the members' calls wait for each other, or one member calls nothing, it does not end, so that the host compares them here.
"""

import time

from pgas.job.memory.teams import Teams
from pgas.kernels import layout, operation, refusals
from pgas.kernels.collectives.comparison import described, is_of, same_epoch


def of_error(teams: Teams, name: str, seconds: float = 0) -> str:
    """Return "; " and two calls that differ on any channel, "" if there are none.

    Args:
        teams: teams of this PE.
        name: name of the operation with the error.
        seconds: maximum time to wait for a neighbor's call.
    """
    deadline = time.monotonic() + seconds
    while name.removesuffix("_block").removesuffix("_warp") in operation.COLLECTIVES:
        for number, record in teams.records.items():
            for channel in range(record.channels + 1):  # The last one is the first of the host's.
                if found := _differing(teams, number, channel):
                    return found
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return ""


def of_wait(teams: Teams, address: int, wanted: int) -> str:
    """Return "; " and what this PE and a neighbor call, if the neighbor calls something else, or has not called yet; otherwise "".

    Args:
        address: address of the word that a thread waits for.
        wanted: value that it waits for.
    """
    if (found := teams.located(address)) is None:
        return ""
    number, channel, what = found
    channel = min(channel, teams.records[number].channels)  # Only the first block of a host's call declares it.
    if differing := _differing(teams, number, channel):
        return differing
    epoch = wanted >> layout.CHUNK_SHIFT if what == "chunk" else wanted
    mine, theirs = teams.calls(number, channel)
    slot = epoch & 1
    if not mine[slot] or not is_of(mine[slot], epoch):
        return ""
    late = [(pe, words) for pe, words in theirs.items() if not same_epoch(words[slot], mine[slot])]
    if not late:
        return ""
    pe, words = late[0]
    word = words[1 - slot] or words[slot]
    last = f" (its last call there: {described(word)})" if word else ""
    return f"; this PE calls {described(mine[slot])}, which PE {pe} has not called{last}"


def _differing(teams: Teams, number: int, channel: int) -> str:
    mine, theirs = teams.calls(number, channel)
    for pe, words in theirs.items():
        for own, other in zip(mine, words, strict=True):
            if own and other != own and same_epoch(other, own):
                text = refusals.message("other call", who="", pe=pe, theirs=described(other, own), mine=described(own))
                return f"; {text.removeprefix(': ')}"
    return ""
