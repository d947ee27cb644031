"""``python -m pgas info`` alone and under mpirun: every variable, the PEs, window, heap, transport and why."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import forks
import pytest
from strangers import NOBODY, stranger

import pgas
from pgas import __main__ as commands
from pgas.base import config
from pgas.base.errors import HeapError
from pgas.doctor import hca
from pgas.job.memory.teams import Plan
from pgas.transports.softhca.process import client, messages
from pgas.transports.softhca.process.messages import RequestKind

MPIRUN = Path(sys.executable).with_name("mpirun")


def info(npes, *arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
    environment |= {"NUMBA_ENABLE_CUDASIM": "1", **variables}
    launcher = [] if npes == 1 else [str(MPIRUN), "-n", str(npes)]
    command = [*launcher, forks.python(), "-m", "pgas", *(arguments or ("info",))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def sections(text):
    """Return title -> lines of a text. Titles are not indented, and follow an empty line."""
    head, *parts = text.split("\n\n")
    return {"": head.splitlines()} | {part.splitlines()[0]: part.splitlines()[1:] for part in parts}


@pytest.fixture(scope="module", params=[1, 2])
def listing(request):
    if request.param > 1 and not MPIRUN.exists():
        pytest.skip("no mpirun beside this Python")
    done = info(request.param, PGAS_SYMMETRIC_SIZE="64M", PGAS_DEBUG="check")
    assert (done.returncode, done.stderr) == (0, "")
    return request.param, sections(done.stdout)


def test_it_is_printed_once(listing):
    _, found = listing
    assert found[""] == [f"pgas {pgas.__version__}"]
    assert list(found) == ["", "Environment variables", "PEs", "Symmetric heap", "Transport"]


def test_every_variable_with_its_value(listing):
    _, found = listing
    rows = {line.split()[0]: line for line in found["Environment variables"]}
    assert rows.keys() == {"variable", *config.VARIABLES}
    for name, variable in config.VARIABLES.items():
        row = re.split(r"\s{2,}", rows[name])
        value = {"PGAS_SYMMETRIC_SIZE": "64M", "PGAS_DEBUG": "check"}.get(name, "-")
        assert row == [name, variable.type, variable.default or "-", value, variable.meaning]


def test_every_pe(listing):
    npes, found = listing
    rows = [re.split(r"\s{2,}", line) for line in found["PEs"]]
    assert rows[0] == ["PE", "process", "node", "GPU"]
    assert [row[0] for row in rows[1:]] == [str(pe) for pe in range(npes)]
    assert len({row[1] for row in rows[1:]}) == npes
    assert {row[3] for row in rows[1:]} == {"simulator"}
    assert {row[2] for row in rows[1:]} == {os.uname().nodename}


def test_window_heap_and_team_memory(listing):
    npes, found = listing
    window, heap, teams = found["Symmetric heap"]
    assert "PE p's slot at 0x600000000000 + p * 2^38" in window
    assert "state page at 0x5fff00000000" in window
    assert f"{64 << 20} bytes at offset 0x100000000 of every slot" in heap
    plan = Plan(npes, 16, 4096, 36)
    size = "room for 36 teams of all PEs, 16 channels each, up to 4096 bytes per pair through staging"
    assert teams.split() == f"teams {plan.nbytes} bytes before it: {size}".split()


def test_size_of_team_memory():
    """Room for 32 teams of all PEs and the predefined ones, fewer for many PEs; what does not fit before the heap is refused by name."""
    defaults = {name: config.read(name) for name in ("PGAS_CHANNELS", "PGAS_LL_BYTES", "PGAS_MAX_TEAMS")}
    assert [Plan.of(n, defaults).max_teams for n in (2, 32, 512)] == [36, 36, 8]
    assert Plan.of(8, defaults).nbytes <= 220 << 20
    assert Plan.of(64, defaults).nbytes <= 513 << 20
    assert Plan.of(8, defaults | {"PGAS_MAX_TEAMS": 8}).nbytes <= 52 << 20
    with pytest.raises(HeapError, match=r"choose a smaller PGAS_LL_BYTES \(1048576\), PGAS_CHANNELS \(16\), or PGAS_MAX_TEAMS \(8\)"):
        Plan.of(64, defaults | {"PGAS_LL_BYTES": 1 << 20})
    assert Plan.of(8, defaults | {"PGAS_LL_BYTES": 64}).ll_bytes == 64
    with pytest.raises(HeapError, match="PGAS_LL_BYTES=64: for 9 PEs it must be 128 or more"):
        Plan.of(9, defaults | {"PGAS_LL_BYTES": 64})


def test_transport_and_why(listing):
    _, found = listing
    assert found["Transport"] == ["  every pair of PEs: p2p (all PEs are on one node and map each other's memory)"]


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
def test_paths_of_all_pairs_and_why():
    done = info(3, PGAS_SYMMETRIC_SIZE="16M", PGAS_PES_PER_NODE="2,1", PGAS_TRANSPORT="p2p,ibrc")
    assert sections(done.stdout)["Transport"] == [
        "  p2p,ibrc (asked for; ibrc over the software NIC (cpu engine): kernels run in the simulator)",
        "       PE0   PE1   PE2",
        "  PE0  p2p   p2p   ibrc",
        "  PE1  p2p   p2p   ibrc",
        "  PE2  ibrc  ibrc  p2p",
        "  p2p (memory is mapped): PEs 0-1; 2",
        "  ibrc (on different nodes according to PGAS_PES_PER_NODE=2,1): PEs 0-1 and 2",
        "  atomics and signals that add: ibrc for every pair (PGAS_AMO=nic)",
    ]


BAD = "python -m pgas: error: PGAS_TRANSPORT=tcp: must be one of auto; p2p; ibgda; ibrc; p2p,ibgda; p2p,ibrc\n"


def test_a_bad_variable_is_one_line():
    done = info(1, PGAS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == BAD


def test_the_reason_of_a_nic_transport():
    done = info(1, PGAS_TRANSPORT="ibgda")
    assert done.returncode == 0
    assert "every pair of PEs: ibgda (asked for; over the software NIC (cpu engine): kernels run in the simulator)" in done.stdout


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
def test_a_bad_variable_in_a_job():
    done = info(2, PGAS_TRANSPORT="tcp")
    assert done.returncode != 0
    assert BAD in done.stderr
    assert "Traceback" not in done.stderr


def test_misspelled_variable_is_reported():
    done = info(1, PGAS_TIMOUT="3")
    assert done.returncode == 0
    assert "unknown environment variables are ignored: PGAS_TIMOUT (did you mean PGAS_TIMEOUT?); check the spelling" in done.stderr


def test_unknown_command():
    done = info(1, "infos")
    assert done.returncode == 2
    assert "invalid choice: 'infos'" in done.stderr


def test_no_command(capsys, monkeypatch):
    """The commands are listed."""
    monkeypatch.setattr("sys.argv", ["pgas"])
    assert commands.main() == 2
    assert "check this machine and print remedies" in capsys.readouterr().err


def listens(name):
    """Return a socket with a name like a card's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(b"\0" + name.encode() if isinstance(name, str) else b"\0" + name)
    listener.listen()
    return listener


def answers(listener, *bodies):
    connection, _ = listener.accept()
    with connection:
        for body in bodies:
            messages.receive(connection)
            messages.send(connection, RequestKind.OK, body)
        messages.receive(connection)


def test_cards_that_do_not_answer(capsys, monkeypatch):
    """One has ended, others are silent, send garbage or terminal escapes, or belong to another user. Each gets one line, the others too."""
    monkeypatch.setattr(hca, "_ANSWER_S", 0.2)
    ended, silent, nonsense, numbers, escapes, foreign = (f"pgas-hca-0-{os.getpid() << 8 | i:016x}" for i in range(6))
    escaping = {"pid": 0, "hca": {"\x1b[2J": "\x1b]0;x\x07"}, "qps": [{"qpn": 1, "state": "\x1b[1m"}], "cqs": [], "keys": [], "uars": []}
    said = {ended: [{"pid": 0}], nonsense: [{"pid": 0}, b"{"], numbers: [{"pid": 0}, [1, 2]], escapes: [{"pid": 0}, escaping]}
    with contextlib.ExitStack() as undo:
        undo.enter_context(
            listens(b"\xff\xfe pgas-hca-1-0123456789abcdef\n @pgas-hca-2-0123456789abcdef\n")
        )  # not UTF-8, and several lines
        undo.enter_context(listens(silent))
        for name, bodies in said.items():
            thread = threading.Thread(target=answers, args=(undo.enter_context(listens(name)), *bodies))
            thread.start()
            undo.callback(thread.join, 10)
        undo.enter_context(stranger(lambda: listens(foreign).detach(), NOBODY))
        card = client.start(1)
        undo.callback(card.end)
        hca.run(None)
    lines = capsys.readouterr().out.splitlines()
    assert f"software NIC {ended}: cannot be queried: the software NIC is gone: its process has ended" in lines
    assert f"software NIC {silent}: cannot be queried: no answer within 0.2 s" in lines
    assert f"software NIC {nonsense}: cannot be queried: softhca: the answer is not JSON" in lines
    assert f"software NIC {numbers}: its answer cannot be read; it may be of another version of pgas" in lines
    assert f"software NIC {foreign}: cannot be queried: the software NIC at {foreign!r} is another user's" in lines
    assert f"software NIC {escapes} (process 0): \\x1b[2J \\x1b]0;x\\x07" in lines
    assert "0x1  \\x1b[1m" in lines
    assert [line for line in lines if re.match(rf"software NIC {card.name} \(process {card.pid}\): engine cpu, wqes 0, ", line)]
    assert all(line.isprintable() for line in lines)


def test_other_sockets_are_no_cards():
    names = [f"pgas-hca-7-{os.getpid():016x}", f"pgas-hca-7-{os.getpid():016x}x", f"pgas-hca-x-{os.getpid():016x}"]
    with contextlib.ExitStack() as undo:
        for name in names:
            undo.enter_context(listens(name))
        assert set(names) & set(client.find()) == {names[0]}
