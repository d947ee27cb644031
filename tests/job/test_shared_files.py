"""MPI's files in /dev/shm that a killed job would leave: removed at once, later, or by the watcher process."""

import contextlib
import math
import mmap
import os
import signal
import subprocess
import sys
import time

import pytest
from jobs import LIMIT, until

from pgas.job.bootstrap import shared_files
from pgas.perftests.harness.jobs import mpirun


@contextlib.contextmanager
def mapped(kind):
    """A file in /dev/shm, named as by MPI, that this process has mapped."""
    path = f"/dev/shm/{kind}test_{os.getpid()}"
    with open(path, "w+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
    try:
        yield path
    finally:
        memory.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@pytest.mark.parametrize(
    ("kind", "early", "late", "at_the_end"),
    [
        ("mpich_shm_", True, True, True),
        ("sm_segment.", False, True, True),
        ("vader_segment.", False, False, True),
        ("other.", False, False, False),
    ],
)
def test_which_names_are_removed_when(kind, early, late, at_the_end):
    with mapped(kind) as path:
        shared_files.forget_early()
        assert os.path.exists(path) is not early
    with mapped(kind) as path:
        shared_files.forget_shared_files()
        assert os.path.exists(path) is not late
        shared_files.forget_shared_files(every=True)
        assert os.path.exists(path) is not at_the_end


def test_the_watcher_ends_when_it_is_not_needed():
    with mapped("vader_segment.") as path:
        shared_files.guard_shared_files(math.inf, lambda: None)
        ((child, _),) = shared_files._guards
        assert os.getsid(child) == child  # What kills this process's group does not kill it.
        shared_files.forget_shared_files()
        with pytest.raises(ChildProcessError):
            os.waitpid(child, 0)
        assert os.path.exists(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_group_that_is_killed(number, tmp_path):
    """The watcher removes the files that it has seen. It keeps no descriptor of the dead process open, as launchers wait for these."""
    output, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        shared_files.guard_shared_files(math.inf, lambda: None)
        with mapped("mpich_shm_"):
            os.write(theirs, b"ready")
            signal.pause()
        os._exit(1)
    os.close(theirs)
    path = f"/dev/shm/mpich_shm_test_{pid}"
    assert os.read(output, 5) == b"ready"
    assert os.path.exists(path)
    time.sleep(1)  # many polls of 20 ms, also if the machine is busy
    os.killpg(pid, number)
    os.waitpid(pid, 0)
    assert os.read(output, 1) == b""
    os.close(output)
    until(lambda: not os.path.exists(path), 10)
    assert not os.path.exists(path)


LATE = """
import os, sys, time
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
if rank:
    time.sleep(1000)
open(sys.argv[1], "w").write(str(os.getpid()))
import pgas
pgas.init()
"""


def names(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[5] for line in maps if any(kind in line for kind in shared_files._ALL)}


def test_a_job_that_is_killed_between_the_first_and_the_last_init(tmp_path):
    """mpirun is killed by SIGKILL while a PE waits in MPI_Init for a late one."""
    try:
        launcher = mpirun(2)
    except FileNotFoundError:
        pytest.skip("capability missing: an mpirun")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | {"NUMBA_ENABLE_CUDASIM": "1"}
    job = subprocess.Popen([*launcher, sys.executable, "-c", LATE, str(tmp_path / "pid")], env=environment, start_new_session=True)
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), LIMIT)
        pid = int((tmp_path / "pid").read_text())
        until(lambda: names(pid), LIMIT)
        left = names(pid)
        assert left
        time.sleep(0.4)
    finally:
        job.kill()
        job.wait()
    until(lambda: not any(map(os.path.exists, left)), 20)
    assert not [name for name in left if os.path.exists(name)]
