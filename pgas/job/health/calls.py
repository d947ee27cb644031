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
    if not mine or not is_of(mine, epoch + 2 if what == "acknowledgment" else epoch):  # See channel.begin().
        return ""
    late = [(pe, word) for pe, word in theirs.items() if not same_epoch(word, mine)]
    if not late:
        return ""
    pe, word = late[0]
    last = f" (its last call there: {described(word)})" if word else ""
    return f"; this PE calls {described(mine)}, which PE {pe} has not called{last}"


def _differing(teams: Teams, number: int, channel: int) -> str:
    mine, theirs = teams.calls(number, channel)
    for pe, word in theirs.items():
        if mine and word != mine and same_epoch(word, mine):
            text = refusals.message("other call", who="", pe=pe, theirs=described(word), mine=described(mine))
            return f"; {text.removeprefix(': ')}"
    return ""
