"""Jobs of 2 + 2 PEs on two machines over the wire of the software NIC, with the kernel's netem between them.

In the guest: make check-rxe-netem.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from rxe import nodes

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/job"))

from test_wire_machines import CHAPTERS, PROGRAM  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists("/sys/class/infiniband/rxe0"), reason="capability missing: the guest's kernel (make check-rxe-netem)"
    ),
    pytest.mark.timeout(3000),
]

JOB = {
    "PGAS_HCA": "softhca", "PGAS_SYMMETRIC_SIZE": "64M", "PGAS_TIMEOUT": "120", "NUMBA_ENABLE_CUDASIM": "1", "PGAS_DEBUG": "info",
}  # fmt: skip

#: Arguments of netem, for each direction.
LINKS = {
    "loss": "loss 1%",
    "reorder": "delay 2ms reorder 5%",
    "duplicate": "duplicate 1%",
    "corrupt": "corrupt 1%",
    "late": "delay 20ms",
}


@pytest.mark.parametrize("link", LINKS)
def test_a_program(tmp_path, link):
    """put_signal, get, atomics whose sums are exact, barriers, and a reduction, between PEs of one machine over the card as well."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "6"))
    with nodes.apart(LINKS[link]):
        job = nodes.run(tmp_path, [str(tmp_path / "program.py")], {**os.environ, **JOB, "PGAS_TRANSPORT": "ibgda"})
        print(nodes.NODES[0].netem())
    assert job.statuses == [0, 0], job
    assert job.out.count("right") == 4, job


#: Which tests of each chapter (--part): the guest is emulated.
PARTS = {"rma": "1/8", "atomics": "1/8", "signals": "1/4", "collectives": "1/8"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_conformance(tmp_path, chapter):
    part = PARTS[Path(chapter).stem.removeprefix("test_")]
    program = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--part", part, "--durations=0", str(ROOT / chapter)]
    with nodes.apart(LINKS["loss"]):
        job = nodes.run(tmp_path, program, {**os.environ, **JOB, "PGAS_TRANSPORT": "p2p,ibgda"}, limit=2800)
        print(nodes.NODES[0].netem())
    assert job.statuses == [0, 0], job
    assert all(re.search(r"\d+ passed", out) for out in job.outs), job


#: Runs in the program, on one PE of the second machine: its interface goes down, and up again if a time is given.
FAULT = """
import subprocess, threading, time

def link(state):
    subprocess.run(["ip", "link", "set", "INTERFACE", state], check=True)

def fault():
    link("down")
    say("down", time.time())
    if SECONDS:
        time.sleep(SECONDS)
        link("up")
        say("up", time.time())

def say(*words):
    print(*words, flush=True)

def attempt(call, *arguments):
    try:
        call(*arguments)
    except pgas.PgasError as error:
        say(f"PE {pgas.my_pe()} failed after {time.time()}: {error}")
        raise
    say("ended", time.time())

"""


def job_with_fault(tmp_path, transport, seconds, rounds):
    """Run the program while the link is down for some seconds, from its second second on; 0: for good."""
    program = PROGRAM.replace("ROUNDS", str(rounds))
    fault = FAULT.replace("INTERFACE", nodes.NODES[1].interface).replace("SECONDS", str(seconds))
    start = "    threading.Timer(1, fault).start() if me == n - 1 else None\n"
    call = "kernel[1, 1](data, fetched, sums, flag, rounds)"
    program = fault + program.replace(f"    {call}", f"{start}    attempt({call[:12]}, {call[13:]}")
    (tmp_path / "program.py").write_text(program)
    with nodes.apart():
        job = nodes.run(tmp_path, [str(tmp_path / "program.py")], {**os.environ, **JOB, "PGAS_TRANSPORT": transport})
    said = {word: float(at) for word, at in re.findall(r"\] (down|up|ended) ([\d.]+)", job.out)}
    return job, said


@pytest.mark.parametrize("transport", ["p2p,ibgda", "p2p,ibrc"])
def test_a_link_that_is_down_for_two_seconds(tmp_path, transport):
    job, said = job_with_fault(tmp_path, transport, 2, 20)
    assert job.statuses == [0, 0], job
    assert job.out.count("right") == 4, job
    assert said["up"] < said["ended"], job


def test_a_link_that_stays_down(tmp_path):
    """Every PE ends with an error that names a PE. The store is also behind the link."""
    job, said = job_with_fault(tmp_path, "p2p,ibgda", 0, 100_000)
    assert 0 not in job.statuses, job
    assert max(job.ended) - said["down"] < int(JOB["PGAS_TIMEOUT"]) + 10, job
    for pe in range(4):
        error = re.search(rf"PE {pe} failed after ([\d.]+): (.*)", job.out)
        assert error, (pe, job)
        assert re.search(r"PE \d", error[2]), error[0]
