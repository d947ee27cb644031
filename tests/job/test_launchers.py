"""What launchers tell each other: PEs that end before pgas.init(), and launchers that end or are stopped. No command waits for ever."""

import re
import signal
import sys
import time

import pytest
from test_run import _no_launcher, ended, free_port, started

__all__ = ["_no_launcher"]  # a fixture of every test here

TIMEOUT_S = 2

#: Seconds within which every command ends, as docs/launch.md promises, and some more for a busy machine.
LIMIT_S = TIMEOUT_S + 10 + 5

#: One PE ends without pgas.init(); the others call it, or only compute. The last number is the rank that ends.
PROGRAM = """
import json, os, signal, sys, time
rank, end, others, who = json.loads(os.environ["PGAS_LAUNCHED"])["rank"], *sys.argv[1:]
if rank == int(who):
    exec(end)
if others == "compute":
    time.sleep(100)
if others == "rest":
    time.sleep(7)
    sys.exit(0)
import pgas
pgas.init()
"""


def nodes(tmp_path, *arguments):
    """Start a job on two nodes; return its launchers."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    shared = ("--nnodes", "2", "--master", f"127.0.0.1:{free_port()}", "--node-rank")
    return [
        started(
            [sys.executable, "-m", "pgas.run", "-n", "1", *shared, str(i), str(path), *arguments],
            PGAS_SECRET="of the two machines",
            PGAS_TIMEOUT=str(TIMEOUT_S),
        )
        for i in range(2)
    ]


@pytest.mark.parametrize(
    ("end", "others", "who", "status", "how"),
    [
        ("import nothing_of_this_name", "init", 1, 1, "ended with status 1"),
        ("os.kill(os.getpid(), 9)", "compute", 0, 137, "was killed by signal 9"),
        pytest.param("sys.exit(0)", "init", 1, 1, r"ended with status 0 without calling pgas\.init\(\)", marks=pytest.mark.slow),
        pytest.param("sys.exit(0)", "init", 0, 1, r"ended with status 0 without calling pgas\.init\(\)", marks=pytest.mark.slow),
    ],
)
def test_a_pe_that_ends_before_init(tmp_path, end, others, who, status, how):
    """The other node's command names it, and has its status."""
    began = time.monotonic()
    found = ended(nodes(tmp_path, end, others, str(who)))
    assert time.monotonic() - began < LIMIT_S
    assert found[1 - who][0] == status, found
    assert found[who][0] == (0 if "exit" in end else status), found
    named = re.findall(rf"^pgas: PE {who} \(process \d+ on \S+\) {how}: the job cannot continue$", found[1 - who][2], re.MULTILINE)
    assert len(named) == 1, found


def test_a_pe_that_ends_before_init_on_one_node(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "pgas.run", "-n", "2", str(path), "sys.exit(0)", "init", "1"]
    ((status, _, err),) = ended([started(command, PGAS_TIMEOUT=str(TIMEOUT_S))])
    assert status == 1
    how = r"ended with status 0 without calling pgas\.init\(\): the job cannot continue"
    assert re.search(rf"^pgas: PE 1 \(process \d+ on \S+\) {how}$", err, re.MULTILINE), err


@pytest.mark.slow
def test_programs_that_never_call_init(tmp_path):
    """They are not a job, so that their ends are not failures. Node 1 goes on after the store has ended."""
    found = ended(nodes(tmp_path, "sys.exit(0)", "rest", "0"))
    assert [status for status, *_ in found] == [0, 0], found


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "ended"),
        pytest.param(signal.SIGSTOP, r"is unreachable at \S+: nothing has come from it for 2 s \(PGAS_TIMEOUT\)", marks=pytest.mark.slow),
    ],
)
def test_a_launcher_that_is_gone_or_stopped(tmp_path, number, how):
    """Its PEs only compute, so that nothing else shows it."""
    launchers = nodes(tmp_path, "print('begun', flush=True); time.sleep(100)", "compute", "1")
    assert "begun" in launchers[1].stdout.readline()
    launchers[1].send_signal(number)
    began = time.monotonic()
    ((status, _, err),) = ended(launchers[:1])
    assert time.monotonic() - began < LIMIT_S
    launchers[1].kill()
    ended(launchers[1:])
    assert status == 1
    who = rf"the launcher of node 1 \(process {launchers[1].pid} on \S+\)"
    assert re.search(rf"^pgas: {who} {how}: the job cannot continue$", err, re.MULTILINE), err
