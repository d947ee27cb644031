"""Other processes on this machine, possibly of another user, for tests of what they can do to a job."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator

import pytest

NOBODY = 65534


@contextlib.contextmanager
def stranger(act: Callable[[], None], uid: int | None = None) -> Iterator[int]:
    """Run an action in another process, of user uid, which then waits to be killed; yield its pid after the action."""
    if uid is not None and os.geteuid() != 0:
        pytest.skip("capability missing: root, to play another user")
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            act()
            os.write(theirs, b"done")
            os.read(os.pipe()[0], 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(theirs)
    try:
        done = os.read(ours, 4)
        os.close(ours)
        assert done == b"done", "the stranger failed: see stderr"
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
