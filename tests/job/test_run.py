"""Jobs without MPI: python -m pgas.run, the variables of torchrun and srun, unique ids; how such jobs end, and refusals."""

import contextlib
import errno
import getpass
import json
import os
import pty
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import pgas
from pgas import run
from pgas.base import ancestors, config, launcher
from pgas.base.ancestors import Ancestor
from pgas.base.arguments import Parser
from pgas.base.errors import BootstrapError
from pgas.base.launcher import Launched, launched
from pgas.job.bootstrap import host_lists, own_addresses, protocol, rendezvous
from pgas.job.bootstrap.protocol import exchange
from pgas.perftests.harness.jobs import mpirun

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, time
import numpy as np
import pgas

@pgas.jit
def shift(dest, source, pe):
    pgas.put_block(dest, source, pe)

def body():
    me, n = pgas.my_pe(), pgas.n_pes()
    dest, source = pgas.zeros(4, np.int32), pgas.full(4, me, np.int32)
    shift[1, 32](dest, source, (me + 1) % n)
    pgas.barrier_all()
    said = f"{me} of {n} got {dest.copy_to_host()[0]}{', MPI' if 'mpi4py.MPI' in sys.modules else ''}"
    os.write(1, f"{said}\\n".encode())
    return me

"""


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PMI_", "PMIX_", "OMPI_", "SLURM_", "PGAS_"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def started(command, **variables):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "NUMBA_ENABLE_CUDASIM": "1", "PGAS_SYMMETRIC_SIZE": "16M", **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(processes):
    """Wait for processes; return status, stdout and stderr of each."""
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        found.append((process.returncode, out, err))
    return found


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + text)
    return str(path)


def by_run(path, *arguments, n=2):
    return [sys.executable, "-m", "pgas.run", "-n", str(n), *arguments, path]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# -------------------------------------------------------------------------------------------------------------------- pgas.run


def test_a_job(tmp_path):
    """Two jobs in one process, without MPI; each line of output names its PE."""
    path = program(tmp_path, "for _ in range(2):\n    with pgas.init():\n        body()\nprint('error', file=sys.stderr)\n")
    ((status, out, err),) = ended([started(by_run(path))])
    assert (status, err) == (0, "[PE 0] error\n[PE 1] error\n") or (status, err) == (0, "[PE 1] error\n[PE 0] error\n")
    assert sorted(out.splitlines()) == sorted(2 * ["[PE 0] 0 of 2 got 1", "[PE 1] 1 of 2 got 0"])


@pytest.mark.parametrize(("n", "mark"), [(2, "[PE 0] "), (1, "")])
def test_the_first_pe_says_that_kernels_run_in_the_simulator(tmp_path, monkeypatch, n, mark):
    """The launcher, which imports pgas, does not choose for the PEs."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    path = program(tmp_path, "pgas.init()\n")
    variables = {"PYTHONPATH": f"{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(by_run(path, n=n), env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ended([process]) == [(0, "", f"{mark}pgas: no CUDA device here, kernels run in the simulator\n")]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a", b"b\nc", b"\n\nd"], [b"#ab\n", b"#c\n#\n", b"#d\n"]),
        ([b"\r10%", b"\r20%\r", b"30%\r\n"], [b"#\r", b"#10%\r#20%\r", b"#30%\r\n"]),
        ([b"a\r", b"\nb\r", b"c"], [b"#a\r", b"\n", b"#b\r", b"#c\n"]),
        ([bytes(1 << 16)] * 1001, 62 * [b"#" + bytes(1 << 20) + b"\n"] + [b"#" + bytes(9 << 16) + b"\n"]),
    ],
    ids=["newlines", "carriage returns", "split ends", "a long line"],
)
def test_lines(pieces, shown):
    """Lines appear as soon as they end. A long line costs time in proportion to its length, and is divided, so that memory is limited."""
    written = []
    lines = run._Lines(b"#", types.SimpleNamespace(write=written.append, flush=lambda: None))
    begun = time.monotonic()
    for piece in pieces:
        lines.add(piece)
    lines.end()
    assert time.monotonic() - begun < 5
    assert written == shown


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("os.kill(os.getpid(), 9)", 137, "PE 1 (process N) was killed by signal 9: the job cannot continue"),
        pytest.param("sys.exit(3)", 3, "program ended with exit status 3", marks=pytest.mark.slow),
        pytest.param("raise ValueError('bad')", 1, "PE 1 failed (ValueError), ending the job", marks=pytest.mark.slow),
    ],
)
def test_a_pe_that_fails(tmp_path, end, status, said):
    """It ends the others, the reason is printed once, and the command has its status."""
    path = program(tmp_path, f"with pgas.init():\n    if body() == 1:\n        {end}\n    pgas.barrier_all()\n")
    ((found, _, err),) = ended([started(by_run(path))])
    lines = [line for line in err.splitlines() if "pgas: " in line]
    assert found == status, err
    assert len(lines) == 1, err
    assert said in re.sub(r"process \d+", "process N", lines[0]), err


LATE = """import signal
from pgas.job import runtime
from pgas.job.health import ending
runtime.GRACE_S = ending.end_all.__kwdefaults__["grace_s"] = 60
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"terminated\\n"))
with pgas.init():
    if body() == 1:
        sys.exit(3)
    print("kept")
    pgas.barrier_all()
"""


def test_pes_end_soon_after_one_failed(tmp_path):
    """Others that wait for the end of the job end when the status is known, and lose no output. The launcher terminates no PE."""
    ((status, out, err),) = ended([started(by_run(program(tmp_path, LATE), n=3), PYTHONUNBUFFERED="")])
    assert status == 3, err
    assert sorted(line for line in out.splitlines() if "kept" in line) == ["[PE 0] kept", "[PE 2] kept"], err
    assert "terminated" not in err


READS = "import sys\ntext = sys.stdin.read()\nprint(len(text), text[:3], flush=True)\n"


@pytest.mark.parametrize(("options", "readers"), [([], {0}), (["--stdin", "all"], {0, 1}), (["--stdin", "none"], set())])
@pytest.mark.parametrize("source", ["pipe", "file", "nothing"])
def test_standard_input(tmp_path, options, readers, source):
    """Also more than a pipe holds. A file is read from its position on."""
    text = "abc" * 100_000
    (tmp_path / "program.py").write_text(READS)
    (tmp_path / "input").write_text(f"-{text}")
    command = by_run(str(tmp_path / "program.py"), *options)
    if source == "file":
        with open(tmp_path / "input", "rb", buffering=0) as file:
            file.read(1)
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60, check=False)
    else:
        given = {"input": text} if source == "pipe" else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **given, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {pe: "300000 abc" if pe in readers and source != "nothing" else "0 " for pe in (0, 1)}
    assert sorted(done.stdout.splitlines()) == [f"[PE {pe}] {shown}" for pe, shown in expected.items()]


def test_standard_input_of_which_a_pe_reads_nothing(tmp_path):
    """The others get theirs, and what nobody reads remains for the next command in a shell's loop."""
    (tmp_path / "program.py").write_text(
        f"import os, sys\nif '\"rank\": 1' in os.environ['PGAS_LAUNCHED']:\n    exec({READS!r})\nelse:\n    sys.stdin.close()\n"
    )
    command = by_run(str(tmp_path / "program.py"), "--stdin", "all")
    done = subprocess.run(command, input="abc" * 100_000, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[PE 1] 300000 abc\n", "")
    (tmp_path / "program.py").write_text("print('ran')")
    loop = f"while read -r line; do echo $line; {' '.join(by_run(str(tmp_path / 'program.py')))}; done"
    done = subprocess.run(["sh", "-c", loop], input="1\n2\n", capture_output=True, text=True, timeout=60, check=False)
    assert re.sub(r"\[PE [01]\] ", "", done.stdout).split() == ["1", "ran", "ran", "2", "ran", "ran"]


@pytest.mark.parametrize("background", [False, True])
def test_standard_input_from_a_terminal(tmp_path, background):
    """Only a command in the foreground may read it; one in the background goes on."""
    (tmp_path / "program.py").write_text("print('ran')" if background else READS)
    command = " ".join(by_run(str(tmp_path / "program.py")))
    pid, terminal = pty.fork()
    if not pid:
        os.execvp("bash", ["bash", "-mc", f"{command} & wait $!; echo ended $?" if background else f"{command}; echo ended $?"])
    os.write(terminal, b"abc\n\x04")
    shown = b""
    with contextlib.suppress(OSError):  # All processes have closed the terminal.
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"ended 0" in shown, shown
    assert (b"[PE 0] ran" if background else b"[PE 0] 4 abc") in shown, shown


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_files(tmp_path, closed):
    """The command runs the program, whose output nobody gets."""
    (tmp_path / "program.py").write_text(f"import os\nprint('ran', flush=True)\nopen({str(tmp_path / 'ran')!r} + str(os.getpid()), 'w')\n")
    command = f"exec {' '.join(by_run(str(tmp_path / 'program.py')))} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ran") == (0 if ">&-" in closed.replace("2>&-", "") else 2)
    assert len(list(tmp_path.glob("ran*"))) == 2


def test_closed_files_of_a_pe(tmp_path):
    """The store's connection must not get the number of stderr, to which libraries print. An error still ends the job."""
    path = program(
        tmp_path, "with pgas.init():\n    os.write(2, b'noise')\n    body()\n    pgas.barrier_all()\n    assert not pgas.my_pe()\n"
    )
    ((status, out, err),) = ended([started([*by_run("sh"), "-c", f"exec {sys.executable} {path} 2>&- <&-"])])
    assert (status, sorted(out.splitlines()), err) == (1, ["[PE 0] 0 of 2 got 1", "[PE 1] 1 of 2 got 0"], "")


@pytest.mark.slow
def test_a_program_without_pgas_that_fails(tmp_path):
    """The launcher reports which process failed, and ends the others."""
    path = tmp_path / "program.py"
    path.write_text("import json, os, time\nif json.loads(os.environ['PGAS_LAUNCHED'])['rank']: os._exit(4)\ntime.sleep(100)\n")
    begun = time.monotonic()
    ((status, _, err),) = ended([started(by_run(str(path), n=3))])
    assert status == 4
    assert "pgas: PE " in err
    assert err.count(" ended with status 4, ending the job\n") == 1, err
    assert time.monotonic() - begun < 40


def test_a_pe_that_is_killed_while_it_prints_why(tmp_path):
    """The launcher reports how it ended, instead."""
    path = tmp_path / "program.py"
    path.write_text(
        "import json, os, time\n"
        "told = json.loads(os.environ['PGAS_LAUNCHED'])\n"
        "if told['rank'] == 0:\n"
        "    os.read(told['word'][0], 1)  # LastWord.say\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ((status, _, err),) = ended([started(by_run(str(path)))])
    assert status == 137
    assert re.fullmatch(r"pgas: PE 0 \(process \d+\) was killed by signal 9: the job cannot continue\n", err), err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_all(tmp_path, number):
    path = program(tmp_path, "pgas.init()\nbody()\npgas.barrier_all()\ntime.sleep(100)\n")
    process = started(by_run(path, n=3))
    for _ in range(3):
        assert " of 3 got " in process.stdout.readline()
    process.send_signal(number)
    ((status, _, err),) = ended([process])
    assert status == 128 + number
    assert err.count("KeyboardInterrupt") <= 3, err
    assert running(path) == b""


def test_two_machines(tmp_path):
    """Two commands, here on one machine, started in either order: the second one's ranks follow the first one's."""
    path = program(tmp_path, "with pgas.init():\n    body()\n")
    shared = ("--nnodes", "2", "--master", f"127.0.0.1:{free_port()}")
    second = started(by_run(path, *shared, "--node-rank", "1", n=1), PGAS_SECRET="of the two machines")
    first = started(by_run(path, *shared, "--node-rank", "0", n=2), PGAS_SECRET="of the two machines")
    ((status, out, err), (other_status, other_out, other_err)) = ended([first, second])
    assert (status, other_status) == (0, 0), err + other_err
    assert sorted(out.splitlines()) == ["[PE 0] 0 of 3 got 2", "[PE 1] 1 of 3 got 0"]
    assert other_out == "[PE 2] 2 of 3 got 1\n"


def test_the_status_of_two_machines(tmp_path):
    """Both commands have that of the PE that failed first. PE 0 fails when the other command has ended."""
    path, file = tmp_path / "program.py", tmp_path / "launcher"
    path.write_text(f"""
import json, os, pathlib, sys, time
file = pathlib.Path({str(file)!r})
if json.loads(os.environ["PGAS_LAUNCHED"])["rank"] == 1:
    file.write_text(str(os.getppid()))
    sys.exit(9)
while not (file.exists() and (pid := file.read_text()) and not os.path.exists(f"/proc/{{pid}}/exe")):
    time.sleep(0.05)
sys.exit(1)
""")
    shared = ("--nnodes", "2", "--master", f"127.0.0.1:{free_port()}")
    found = ended([started(by_run(str(path), *shared, "--node-rank", rank, n=1), PGAS_SECRET="of the two machines") for rank in "01"])
    assert [status for status, *_ in found] == [9, 9], found


def test_a_machine_that_does_not_come_and_a_wrong_key(tmp_path):
    path = program(tmp_path, "pgas.init()\n")
    port = free_port()
    shared = ("--nnodes", "2", "--master", f"127.0.0.1:{port}")
    first = started(by_run(path, *shared), PGAS_SECRET="of the two machines", PGAS_TIMEOUT="6")
    other = started(by_run(path, *shared, "--node-rank", "1"), PGAS_SECRET="of other two machines", PGAS_TIMEOUT="6")
    (alone, refused) = ended([first, other])
    assert alone == (1, "", f"pgas: pgas.run: node 1 of 2 has not connected to 127.0.0.1:{port} (--node-rank 1)\n")
    why = "the secrets differ: this store belongs to another job or was started with a different PGAS_SECRET"
    assert refused == (1, "", f"pgas: pgas.run: rank 1: the store at 127.0.0.1:{port} refuses: {why}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "0", "x.py"], "argument -n: 0 is out of range; it must be 1 to 4096"),
        (["-np", "0", "x.py"], "argument -np: 0 is out of range; it must be 1 to 4096"),
        (["-n", "9" * 20, "x.py"], f"argument -n: {'9' * 20} is out of range; it must be 1 to 4096"),
        (["-n", "9" * 5000, "x.py"], f"argument -n: '{'9' * 80}...' is not an integer; it must be 1 to 4096"),
        (["-n", "\N{SUPERSCRIPT TWO}", "x.py"], "argument -n: '\N{SUPERSCRIPT TWO}' is not an integer; it must be 1 to 4096"),
        (["--nnodes", "4097", "x.py"], "argument --nnodes: 4097 is out of range; it must be 1 to 4096"),
        (["--nnodes", "2", "x.py"], "needs --master HOST:PORT"),
        (["--nnodes", "2", "--master", "here", "x.py"], "argument --master: 'here' is not HOST:PORT: 'here' is not an integer"),
        (["--nnodes", "2", "--master", "127.0.0.1:\N{SUPERSCRIPT TWO}", "x"], "'\N{SUPERSCRIPT TWO}' is not an integer"),
        (["--nnodes", "2", "--master", "here:65536", "x.py"], "the port must be 1 to 65535"),
        (["--nnodes", "2", "--master", "a..b:29400", "x.py"], "'a..b' is not a host: an IP address, or a name whose labels have 1 to 63"),
        (["--nnodes", "2", "--master", f"{'a' * 300}:29400", "x.py"], f"'{'a' * 80}...' is not a host"),
        (
            ["--nnodes", "2", "--master", "0.0.0.0:29400", "x.py"],
            "'0.0.0.0' stands for all addresses; it must be one address or name of a node",
        ),
        (["--nnodes", "2", "--master", "[::]:29400", "x.py"], "'::' stands for all addresses; it must be one"),
        (["--nnodes", "2", "--master", "0:29400", "x.py"], "'0' stands for all addresses; it must be one"),
        (["--nnodes", "2", "--master", "224.0.0.1:29400", "x.py"], "'224.0.0.1' stands for many addresses; it must be one"),
        (["--nnodes", "9999999999", "x.py"], "argument --nnodes: 9999999999 is out of range; it must be 1 to 4096"),
        (["--master", "here:29400", "x.py"], "argument --master: only jobs on several nodes have it; add --nnodes"),
        (["--node-rank", "1", "x.py"], "argument --node-rank: 1 is out of range; with --nnodes 1 it must be 0 to 0"),
        (["-n", "2"], "required: program\n"),
        (
            ["--as-nvshmem", "shmem_put_bw"],
            "--as-nvshmem: shmem_put_bw must be a Python program, with a name",
        ),
    ],
)
def test_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit) as refused:
        run.main(arguments)
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m pgas.run: error: ")
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("files", "processes", "most", "why"),
    [
        (84, -1, 5, r"a process may open 84 files \(ulimit -Hn\)"), (1024, 7, 7, r"a user may have 7 processes \(ulimit -u\)"),
        (-1, -1, r"\d+", r"\d+ MiB of memory are available, and each takes \d+ MiB or more"),
    ],
)  # fmt: skip
def test_more_pes_than_the_machine_has_room_for(files, processes, most, why, monkeypatch, capsys):
    monkeypatch.setattr(run, "_PE_BYTES", run._PE_BYTES << (24 if files == -1 else 0))
    monkeypatch.setattr(
        run.resource, "getrlimit", {run.resource.RLIMIT_NOFILE: (64, files), run.resource.RLIMIT_NPROC: (processes, -1)}.get
    )
    with pytest.raises(SystemExit) as refused:
        run.main(["-n", "4000", "x.py"])
    assert refused.value.code == 2
    said = f"python -m pgas.run: error: argument -n: 4000 PEs are too many here; it must be 1 to {most}, because {why}\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_more_pes_than_the_soft_limit_has_files(tmp_path):
    """The command raises the limit, also for its PEs."""
    path = tmp_path / "program.py"
    path.write_text("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n")
    command = ["/bin/sh", "-c", 'ulimit -Sn 70; exec "$@"', "sh", *by_run(str(path), n=12)]
    ((status, out, err),) = ended([started(command)])
    assert (status, err) == (0, "")
    assert sorted(out.split()[2::3]) == ["112"] * 12


def test_a_limit_that_is_reached(tmp_path):
    """PEs that have been started are ended."""
    path = tmp_path / "program.py"
    path.write_text("import time\ntime.sleep(1000)\n")
    code = f"""
import errno, sys
from pgas import run
class Popen(run.subprocess.Popen):
    number = 0
    def __init__(self, *arguments, **options):
        Popen.number += 1
        if Popen.number == 4:  # the first one is not a PE
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        super().__init__(*arguments, **options)
run.subprocess.Popen = Popen
sys.exit(run.main(["-n", "3", {str(path)!r}]))
"""
    words = "PE 2 cannot be started, because a limit of processes is reached (ulimit -u, or the cgroup's pids.max)"
    assert ended([started([sys.executable, "-c", code])]) == [(1, "", f"pgas: pgas.run: {words}\n")]
    assert running(str(path)) == b""


@pytest.mark.parametrize(
    ("n", "name", "status", "why"), [(1, "no-such-program", 127, "No such file or directory"), (2, "text", 126, "Permission denied")]
)
def test_a_program_that_cannot_be_started(tmp_path, n, name, status, why):
    """The statuses are those of shells."""
    (tmp_path / "text").write_text("no program")
    name = str(tmp_path / name)
    said = f"{name} cannot be started: {why}; a Python program has a name that ends in .py, or follows -m"
    assert ended([started(by_run(name, n=n))]) == [(status, "", f"pgas: pgas.run: {said}\n")]


def running(mark):
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, check=False).stdout


def test_children_of_a_pe_that_failed(tmp_path):
    """They end with the job, and do not keep it."""
    path = tmp_path / "program.py"
    path.write_text("import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', f'import time; time.sleep(1000)  # {__file__}'])\n"
                    "os.kill(os.getpid(), 9)\n")  # fmt: skip
    begun = time.monotonic()
    ((status, _, err),) = ended([started(by_run(str(path)))])
    assert status == 137, err
    assert time.monotonic() - begun < 40
    assert running(str(path)) == b""


@pytest.mark.slow
def test_children_that_a_pe_leaves_in_good_order(tmp_path):
    """They may go on; the command does not wait for them, although they hold its pipe."""
    path = tmp_path / "program.py"
    path.write_text("import subprocess\nprint(subprocess.Popen(['sleep', '1000']).pid)\n")
    begun = time.monotonic()
    ((status, out, _),) = ended([started(by_run(str(path)))])
    assert status == 0
    assert time.monotonic() - begun < 40
    for line in out.splitlines():
        os.kill(int(line.split()[-1]), signal.SIGKILL)


def test_a_signal_while_pes_are_started(tmp_path):
    """The others are not started."""
    path = tmp_path / "program.py"
    path.write_text("import time\ntime.sleep(1000)\n")
    code = f"""
import os, signal, sys
from pgas import run
def start(*arguments, start=run._start):
    pe = start(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    print(pe.rank)
    return pe
run._start = start
sys.exit(run.main(["-n", "20", {str(path)!r}]))
"""
    ((status, out, err),) = ended([started([sys.executable, "-c", code])])
    assert status == 128 + signal.SIGTERM, err
    assert out.split() == [str(rank) for rank in range(run._BATCH)]
    assert running(str(path)) == b""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("when", ["starting", "running"])
def test_a_launcher_that_is_killed(tmp_path, number, when):
    """The PEs and their children end with it: also before they have imported anything, and if it dies while it starts one."""
    path = tmp_path / "program.py"
    path.write_text(
        "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', __file__])\n"
        "print(0, flush=True)\ntime.sleep(1000)\n"
    )
    code = f"""
import os, signal, sys
from pgas import run
def enter(guard, enter=run._Guard.enter):
    enter(guard)
    if {when!r} == "starting":
        os.kill(os.getppid(), {number:d})
run._Guard.enter = enter
sys.exit(run.main(["-n", "3", "sh", "-c", '"$0" "$1"; true', sys.executable, {str(path)!r}]))
"""
    process = started([sys.executable, "-c", code])
    if when == "running":
        for _ in range(3):
            assert process.stdout.readline()
        process.send_signal(number)
    assert process.wait(60) == -number
    deadline = time.monotonic() + 10
    while (left := running(str(path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == b""
    process.communicate()


@pytest.mark.slow
def test_interrupt_of_a_pe_in_the_background(tmp_path):
    """A shell ignores SIGINT for such a command, but the PEs must not ignore it."""
    path = program(tmp_path, "pgas.init()\nif body() == 1:\n    os.kill(os.getpid(), 2)\ntime.sleep(100)\n")
    ((status, _, err),) = ended([started(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *by_run(path)])])
    assert status == 1
    assert err.count("pgas: PE 1 failed (KeyboardInterrupt), ending the job") == 1, err


@pytest.mark.slow
def test_a_signal_that_is_ignored(tmp_path):
    """As nohup does with SIGHUP."""
    path = tmp_path / "program.py"
    path.write_text("import os, signal, time\nos.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(1)\n")
    ((status, _, err),) = ended([started(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *by_run(str(path))])])
    assert (status, err) == (0, "")


def process(*programs, pid=7, **variables):
    return Ancestor(pid, frozenset(programs), variables)


@pytest.mark.parametrize(
    ("programs", "variables", "refused"),
    [
        (["hydra_pmi_proxy", "mpirun"], {"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun"),
        (["orted"], {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, "mpirun"),
        (["torchrun"], {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "torchrun"),
        (["slurmstepd"], {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "srun"),
        (["hidden"], {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_TASK_PID": "7"},
         "srun"),
        # A shell of srun --pty, of salloc's interactive step, or in a terminal of a job; one process of srun; variables of a shell.
        (["bash", "slurmstepd"], {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, None),
        (["slurmstepd"], {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, None),
        (["bash"], {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", "PMI_RANK": "0", "PMI_SIZE": "4"}, None),
    ],
    ids=["mpirun", "Open MPI", "torchrun", "srun", "srun hidden", "shell of srun", "one of srun", "leftovers"],
)  # fmt: skip
def test_under_another_launcher(programs, variables, refused, monkeypatch, capsys):
    """A launcher that starts this command several times is refused, because each would start a job; nodes of one job are meant."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ancestors = [process("python", pid=7, **variables), *(process(name, pid=pid) for pid, name in enumerate(programs, 8))]
    monkeypatch.setattr(launcher, "lineage", lambda: ancestors)
    monkeypatch.setattr(run, "_run", lambda *_: 0)
    for nodes in ([], ["--nnodes", "2", "--master", "h:1"]):
        if refused is None or nodes:
            assert run.main(["-n", "2", *nodes, "x.py"]) == 0
        else:
            with pytest.raises(SystemExit):
                run.main(["-n", "2", "x.py"])
            assert f"this command was started by {refused} already: x.py needs no second launcher" in capsys.readouterr().err


def test_one_pe_with_variables_of_other_launchers(monkeypatch):
    """The command becomes the PE, which must not take those variables for its own."""
    executed = []
    monkeypatch.setattr(os, "execvpe", lambda program, arguments, environment: executed.append(environment))
    monkeypatch.setattr(run, "_run", lambda *_: None)
    run.main(["x.py"])
    leftover = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}
    for name, value in leftover.items():
        monkeypatch.setenv(name, value)
    run.main(["x.py"])
    without, environment = executed[0], executed[-1]
    assert launched(without, []) is None
    assert launched(environment, [process("python", pid=os.getpid(), **environment)]) == Launched("pgas.run", 0, 1)
    monkeypatch.setenv("PGAS_LAUNCHED", environment["PGAS_LAUNCHED"])
    assert isinstance(protocol.find(), protocol.SingleBootstrap)


@pytest.mark.parametrize("launcher", ["mpirun", "pgas.run"])
def test_a_launcher_among_variables_of_others(tmp_path, launcher):
    """Those of a shell in a step of srun, in which torch was used. The job was one of two PEs 0 of 1."""
    path = program(tmp_path, "with pgas.init():\n    body()\n")
    leftover = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"} | srun(0, 7)
    leftover |= {"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    command = by_run(path) if launcher == "pgas.run" else [*mpirun(2), sys.executable, path]
    ((status, out, err),) = ended([started(command, **leftover)])
    assert status == 0, err
    assert sorted(re.findall(r"\d of 2 got \d", out)) == ["0 of 2 got 1", "1 of 2 got 0"]


def test_nvshmems_names_under_another_launcher(monkeypatch):
    """In a process that mpirun started, the command becomes the program."""
    executed = []

    def execute(program, command, environment):
        executed.append(command)
        raise OSError(errno.ENOENT, "not here")

    ours = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher, "lineage", lambda: [process("python", **ours), process("mpirun", pid=8)])
    monkeypatch.setattr(os, "execvpe", execute)
    assert run.main(["--as-nvshmem", "x.py", "-y"]) == run.main(["--as-nvshmem", "-m", "x", "-y"]) == 127
    assert executed == [[sys.executable, "-m", "pgas.nvshmem", *program] for program in (["x.py", "-y"], ["-m", "x", "-y"])]
    with pytest.raises(SystemExit):
        run.main(["-n", "2", "--as-nvshmem", "x.py"])


# ----------------------------------------------------------------------------------------------------------- other launchers

WORKER = """
def work():
    try:
        pgas.init()
    except pgas.BootstrapError as error:
        os.write(1, f"{error}\\n".encode())

if "worker" in sys.argv:
    work()
elif __name__ == "__main__":
    import multiprocessing, subprocess
    for _ in range(2):
        with pgas.init():
            body()
            if pgas.my_pe() == 1:
                subprocess.run([sys.executable, __file__, "worker"])
                process = multiprocessing.get_context("spawn").Process(target=work)
                process.start()
                process.join()
            pgas.barrier_all()
"""


@pytest.mark.parametrize("launcher", ["mpirun", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pgas.run", "torchrun", "srun"))])
def test_a_process_that_a_pe_starts(tmp_path, launcher):
    """It is not a PE, although it has the launcher's variables, and is told so, whatever the launcher."""
    path = program(tmp_path, WORKER)
    if launcher in ("pgas.run", "mpirun"):
        pes = [started(by_run(path) if launcher == "pgas.run" else [*mpirun(2), sys.executable, path])]
    else:
        variables = {"torchrun": torchrun, "srun": srun}[launcher]
        port = free_port()
        pes = [started([sys.executable, path], **variables(rank, port), XDG_CONFIG_HOME=str(tmp_path)) for rank in (0, 1)]
    found = ended(pes)
    assert all(status == 0 for status, *_ in found), found
    said = re.sub(r"process \d+", "process N", "".join(out for _, out, _ in found))
    assert said.count("this process was started by PE 1 (process N), and a process that a PE started is not a PE: ") == 4, found
    assert said.count(" of 2 got ") == 4, found


def torchrun(rank, port):
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"run {port}", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def srun(rank, port):
    return {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "localhost",
    }  # fmt: skip


@pytest.mark.parametrize("variables", [torchrun, pytest.param(srun, marks=pytest.mark.slow)])
def test_variables(tmp_path, variables):
    """A process listens at MASTER_PORT, as torchrun's agent does. The key file is made at the first use, for this user only."""
    path = program(tmp_path, "with pgas.init():\n    body()\n")
    with socket.create_server(("127.0.0.1", 0)) as agent:
        port = agent.getsockname()[1]
        pes = [started([sys.executable, path], **variables(rank, port), XDG_CONFIG_HOME=str(tmp_path)) for rank in (1, 0)]
        found = ended(pes)
    assert found == [(0, "1 of 2 got 0\n", ""), (0, "0 of 2 got 1\n", "")]
    key = tmp_path / "pgas" / "secret"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 64
    assert list(key.parent.iterdir()) == [key]


def test_torchs_store(monkeypatch):
    """On several machines rank 0 publishes its address there. A stand-in for torch: the real one is test_the_real_torchrun's."""
    kept, asked = {}, []

    class TCPStore:
        def __init__(self, host, port, is_master, timeout):
            asked.append((host, port, is_master, timeout.total_seconds()))

        def set(self, name, value):
            kept[name] = value.encode()

        def get(self, name):
            if name not in kept:
                raise RuntimeError("wait timeout after 7000ms, keys: /pgas\nmore")
            return kept[name]

    torch = types.SimpleNamespace(TCPStore=TCPStore)
    monkeypatch.setattr(rendezvous.importlib, "import_module", {"torch.distributed": torch}.__getitem__)
    monkeypatch.setattr(rendezvous.importlib.util, "find_spec", lambda name: True)
    for name, value in {**torchrun(0, 77), "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "PGAS_TIMEOUT": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "0")  # not all on this machine
    store = rendezvous.of(Launched("torchrun", 0, 1))
    assert exchange(store, "me") == ["me"]
    store.close()
    assert asked == [("localhost", 77, False, 7.0)]
    with pytest.raises(BootstrapError) as refused:
        rendezvous.of(Launched("torchrun", 1, 2))
    assert str(refused.value) == (
        "rank 1: torchrun's own store at localhost:77 did not return the address of rank 0: wait timeout after 7000ms, keys: /pgas"
    )


@pytest.mark.slow
def test_a_pe_of_srun_that_is_killed(tmp_path):
    """The other PE learns of it only through the job."""
    path = program(tmp_path, "pgas.init()\nif body() == 0:\n    os.kill(os.getpid(), 9)\npgas.barrier_all()\n")
    found = ended([started([sys.executable, path], **srun(rank, 7), XDG_CONFIG_HOME=str(tmp_path)) for rank in (0, 1)])
    assert found[0][0] == -9
    assert found[1][0] == 1
    assert "pgas: PE 0 (process " in found[0][2] + found[1][2]
    assert "was killed by signal 9: the job cannot continue" in found[0][2] + found[1][2]


def test_a_pe_of_srun_that_does_not_come(tmp_path):
    """The one that waits says for whom and where."""
    process = started([sys.executable, program(tmp_path, "pgas.init()\n")], **srun(0, 7), XDG_CONFIG_HOME=str(tmp_path), PGAS_TIMEOUT="1")
    said = process.stderr.readline()
    process.kill()
    ended([process])
    assert re.fullmatch(
        r"pgas: PE 0 has waited 1 s \(PGAS_TIMEOUT\) for PE 1 in pgas.init\(\), at the store at 127.0.0.1:\d+ and is still waiting\n", said
    )


def test_launcher_of_a_process():
    mpi = {"PMI_RANK": "3", "PMI_SIZE": "8"}
    assert launched({}) is None
    assert launched(mpi) == Launched("mpirun", 3, 8)
    assert launched({**srun(1, 7)}) == Launched("srun", 1, 2)
    assert launched({**srun(1, 7), "PMI_RANK": "1", "PMI_SIZE": "2"}, []) == Launched("srun", 1, 2)  # srun --mpi=pmi2
    assert launched({**srun(1, 7), "PMIX_RANK": "1"}, []) == Launched("srun", 1, 2)  # srun --mpi=pmix
    ours = {"rank": 1, "size": 5, "host": "127.0.0.1", "port": 1, "secret": "", "word": [3, 4]}
    for name, variables in (("RANK", torchrun(0, 7)), ("WORLD_SIZE", torchrun(0, 7)), ("SLURM_PROCID", srun(1, 7)), ("PMI_RANK", mpi)):
        for text in ("x", "-1", "\N{SUPERSCRIPT TWO}", "9" * 10):
            with pytest.raises(
                ValueError, match=rf"^{name}={re.escape(ascii(text))}: must be a number, which a launcher sets; unset it if no launcher"
            ):
                launched({**variables, name: text})
    for text in ("soon", "[" * 100_000, "7", json.dumps(ours | {"rank": 5}), json.dumps(ours | {"secret": "soon"})):
        with pytest.raises(ValueError, match=r"^PGAS_LAUNCHED: only python -m pgas.run may set it, for its PEs$"):
            launched({"PGAS_LAUNCHED": text})
    assert launched({"RANK": "1", "WORLD_SIZE": "2"}) is None  # another program's variables
    assert launched({"SLURM_PROCID": "0", "SLURM_JOB_ID": "9"}) is None  # a batch script


TORCH = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "7"}
OF_FOUR = TORCH | {"RANK": "3", "WORLD_SIZE": "4"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}
SHELL = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"}
STEP = SHELL | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
RUN = {"PGAS_LAUNCHED": json.dumps({"rank": 1, "size": 5, "host": "", "port": 1, "secret": "", "word": [3, 4], "launcher": 1})}


@pytest.mark.parametrize(
    ("lines", "winner"),
    [
        # The process and its ancestors: the program, and the variables with which it was started. The last process has pid 1.
        (["python", TORCH | PMI, "hydra_pmi_proxy", TORCH, "mpirun", TORCH, "bash", {}], ("mpirun", 1, 2)),
        (["python", TORCH | PMI, "sh", TORCH | PMI, "hydra_pmi_proxy", TORCH], ("mpirun", 1, 2)),
        (["python", TORCH | OPEN_MPI | PMI, "mpirun", TORCH | PMI, "bash", PMI], ("mpirun", 0, 2)),
        (["python", TORCH | OPEN_MPI, "prted", TORCH, "slurmstepd", {}], ("mpirun", 0, 2)),
        (["python", STEP | OPEN_MPI, "orted", STEP, "slurmstepd", {}], ("mpirun", 0, 2)),  # srun started mpirun's daemon
        (["python", STEP | TORCH, "slurmstepd", {}], ("srun", 1, 2)),
        (["python", STEP | TORCH | PMI, "slurmstepd", TORCH], ("srun", 1, 2)),  # srun --mpi=pmi2
        (["python", SHELL | PMI, "hydra_pmi_proxy", SHELL, "mpirun", SHELL, "bash", SHELL, "slurmstepd", {}], ("mpirun", 1, 2)),
        (["python", STEP | OF_FOUR, "torchrun", STEP, "slurmstepd", {}], ("torchrun", 3, 4)),
        (["python", STEP | OF_FOUR, "torch.distributed.run", STEP | TORCH, "slurmstepd", TORCH], ("torchrun", 3, 4)),
        (["python", RUN | PMI | SHELL, "bash", RUN | PMI | SHELL, "pgas.run", PMI | SHELL], ("pgas.run", 1, 5)),
        (["python", RUN | TORCH, "bash", RUN, "pgas.run", {}], ("pgas.run", 1, 5)),
        (["python", RUN | PMI, "hydra_pmi_proxy", RUN, "mpirun", RUN, "python", RUN, "pgas.run", {}], ("mpirun", 1, 2)),
        # Launchers that are not known by name, such as torch.multiprocessing.spawn().
        (["python", SHELL | OF_FOUR, "python", SHELL, "bash", SHELL, "slurmstepd", {}], ("torchrun", 3, 4)),
        (["python", SHELL, "python", SHELL, "bash", SHELL, "slurmstepd", {}, OF_FOUR], ("torchrun", 3, 4)),
        (["python", TORCH | PMI, "launcher", TORCH, "bash", {}], ("mpirun", 1, 2)),
        (["python", OF_FOUR | TORCH | PMI | {"RANK": "1", "WORLD_SIZE": "2"}, "sh", PMI, "hydra_pmi_proxy", {}], ("torchrun", 1, 2)),
        # It cannot be told.
        (["python", TORCH | PMI, "bash", {}], None),
        (["python", TORCH | PMI, "sh", PMI, "hydra_pmi_proxy", {}], None),
        (["python", PMI, "hydra_pmi_proxy", {}, TORCH | PMI], ("mpirun", 1, 2)),
        (["python", PMI, "sh", PMI, "hydra_pmi_proxy", {}, TORCH], None),
    ],
)  # fmt: skip
def test_launcher_among_several(lines, winner):
    own = lines.pop() if len(lines) % 2 else {}
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    ancestors = [process(name, pid=pid, **variables) for pid, (name, variables) in zip(range(len(pairs), 0, -1), pairs, strict=True)]
    environment = lines[1] | own
    if winner is not None:
        assert launched(environment, ancestors) == Launched(*winner)
        return
    with pytest.raises(ValueError, match="contradict") as refused:
        launched(environment, ancestors)
    assert str(refused.value) == (
        "RANK=0 and WORLD_SIZE=1 of torchrun contradict PMI_RANK=1 and PMI_SIZE=2 of mpirun, and it is unknown which of them started this "
        "process; unset the variables of the launcher that did not"
    )


def test_launchers_that_contradict_each_other(monkeypatch, capsys):
    """init raises the error; a command prints it."""
    monkeypatch.setattr(launcher, "lineage", list)
    for name, value in (TORCH | PMI).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^pgas\.init: RANK=0 and WORLD_SIZE=1 of torchrun contradict "):
        pgas.init()
    with pytest.raises(SystemExit) as ended:
        Parser(prog="pgas info").parse_args([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("pgas info: error: RANK=0 and WORLD_SIZE=1 of torchrun contradict ")


def test_programs_of_ancestors():
    """The name of a script or module that Python runs; Slurm's daemon writes the step into its name."""
    for arguments, names in (
        ("/usr/bin/python3\0-X\0dev\0-u\0/opt/bin/torchrun\0--nnodes\0", {"python3", "torchrun"}),
        ("python\0-m\0torch.distributed.run\0x.py\0", {"python", "torch.distributed.run"}),
        ("python\0-c\0torchrun\0", {"python"}),
        ("slurmstepd: [12.0]\0", {"slurmstepd"}),
        ("/opt/bin/mpirun\0-n\0" + "2\0", {"mpirun"}),
        ("python\0", {"python", ""}), ("", {""}),
    ):  # fmt: skip
        assert set(ancestors._programs(arguments.split("\0"))) == names
    me, parent = ancestors.lineage()[:2]
    assert (me.pid, parent.pid) == (os.getpid(), os.getppid())
    assert any(name.startswith("python") for name in me.programs)


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("alpha", "alpha"), ("alpha,beta", "alpha beta"), ("node[03-05,9],gpu1", "node03 node04 node05 node9 gpu1"),
        ("n[7]-ib,n8", "n7-ib n8"), ("a.b-c[1-2].x", "a.b-c1.x a.b-c2.x"), ("n[8-11]", "n8 n9 n10 n11"), ("n[098-100]", "n098 n099 n100"),
        ("rack[0-1]node[3-4]", "rack0node3 rack0node4 rack1node3 rack1node4"), ("[1-2,7]", "1 2 7"),
        ("r[0,2]n[3-4]-ib,x", "r0n3-ib r0n4-ib r2n3-ib r2n4-ib x"),
        ("n[1,x[4-5]y,9]z", "n1z nx4yz nx5yz n9z"), ("n[[1-2],4]", "n1 n2 n4"), ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("a[1-2],b,c[05]d[6-7]e", "a1 a2 b c05d6e c05d7e"),
    ],
)  # fmt: skip
def test_slurms_list_of_hosts(listed, named):
    assert " ".join(host_lists.hosts(listed)) == named
    assert host_lists.first_host(listed) == named.split()[0]


def test_a_long_list_of_hosts():
    """Only its first host is made."""
    assert host_lists.first_host("n[000000001-999999999]x[1-999999999]") == "n000000001x1"


@pytest.mark.parametrize(
    ("host", "resolved", "used"),
    [
        ("node1", "127.0.1.1", "192.168.7.1"), ("node1.cluster", "127.0.0.1", "192.168.7.1"), ("node1", "10.0.0.1", "node1"),
        ("localhost", "127.0.0.1", "localhost"), ("127.0.1.1", "127.0.1.1", "127.0.1.1"), ("node1", None, "node1"),
    ],
)  # fmt: skip
def test_a_name_that_is_loopback_at_home(host, resolved, used, monkeypatch):
    """Debian's /etc/hosts has such a line for the machine's own name: rank 0 would listen where no other machine reaches it."""

    def found(*_, **__):
        if resolved is None:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(own_addresses, "own_host", lambda: "192.168.7.1")
    served = []
    monkeypatch.setattr(rendezvous, "_meet", lambda launched, address: served.append(address.host))
    for name, value in {**srun(0, 7), "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": host, "PGAS_SECRET": "sixteen letters!"}.items():
        monkeypatch.setenv(name, value)
    rendezvous.of(Launched("srun", 0, 2))
    assert served == [used]


#: Networks of a node, as commands of iproute2, and the address by which other nodes reach it.
NETWORKS = {
    "IPv6 only": (
        "ip addr del 127.0.0.1/8 dev lo; ip -6 addr add fd00::7/64 dev there nodad; ip -6 route add default dev there",
        "fd00::7",
    ),
    "IPv6 without a route": ("ip -6 addr add fd00::7/64 dev there nodad", "fd00::7"),
    "IPv4 without a route": ("ip addr add 10.0.0.7/24 dev there; ip -6 addr add fd00::7/64 dev there nodad", "10.0.0.7"),
    "both": ("ip addr add 10.0.0.7/24 dev there; ip route add default dev there; ip -6 addr add fd00::7/64 dev there nodad", "10.0.0.7"),
    "none": ("true", "127.0.0.1"),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_addresses_of_this_node(network):
    """In a network namespace: the address of a unique ID, and of a name that /etc/hosts gives to the loopback interface."""
    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("capability missing: network namespaces")
    commands, address = NETWORKS[network]
    text = """
import socket
from pgas.job.bootstrap import own_addresses
from pgas.job.bootstrap.store import Store
from pgas.job.bootstrap.store_messages import Address
from pgas.job.bootstrap.store_server import StoreServer
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real("::1" if host == "node7" else host, *rest, **more)
assert own_addresses.outward("localhost") == "localhost"
served = StoreServer(own_addresses.loopback(), 0, bytes(32))
Store(served.address, 0, 1, "job", 5.0)
print(own_addresses.own_host(), own_addresses.outward("node7"), served.address.host)
"""
    links = "ip link set lo up; ip link add here type veth peer name there; ip link set here up; ip link set there up; sleep 0.1"
    command = ["unshare", "--map-root-user", "--net", "sh", "-ec", f"{links}; {commands}; exec {sys.executable} -c '{text}'"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    own = "::1" if network == "IPv6 only" else "127.0.0.1"
    assert (done.stdout.split(), done.stderr) == ([address, address, own], "")


#: Two nodes without IPv4. Each starts two PEs by COMMAND.
NODES = """
set -eu
ip link set lo up; ip addr del 127.0.0.1/8 dev lo
unshare --net sleep 1000 & other=$!
trap 'kill $other' EXIT
until [ $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.05; done
there="nsenter --target $other --net"
ip link add here type veth peer name there netns $other
ip -6 addr add fd00::1/64 dev here nodad; ip link set here up
$there sh -c 'ip link set lo up; ip addr del 127.0.0.1/8 dev lo; ip -6 addr add fd00::2/64 dev there nodad; ip link set there up'
until ip -6 addr show dev here | grep -q fe80; do sleep 0.05; done
sleep 2
NODE=0 sh -c COMMAND > first 2>&1 & first=$!
NODE=1 $there sh -c COMMAND > second 2>&1 || true
wait $first || true
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pgas.run", "torchrun", "srun", "unique_id"])
def test_two_machines_without_ipv4(tmp_path, how):
    """The PEs exchange objects, by names that IPv6 alone resolves."""
    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("capability missing: network namespaces")
    text = """
from pathlib import Path
import sys
given = {}
if sys.argv[1:]:
    uid = Path("uid")
    if os.environ["NODE"] == "0":
        Path("made").write_bytes(pgas.unique_id())
        Path("made").rename(uid)
    while not uid.exists():
        time.sleep(0.05)
    given = {"unique_id": uid.read_bytes(), "rank": int(os.environ["NODE"]), "size": 2}
with pgas.init(**given):
    print("all:", pgas.allgather_object(os.environ["NODE"]), flush=True)
"""
    mute = Path(__file__).with_name("test_unreachable.py").read_text().partition('PROGRAM = ""')[2].partition("with pgas.init")[0]
    (tmp_path / "program.py").write_text(mute.removeprefix('"') + text)
    path = shlex.quote(str(tmp_path / "program.py"))
    run_it = f"{sys.executable} {path}"
    variables = {
        "torchrun": "RANK=$NODE WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=fd00::1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=7",
        "srun": "SLURM_PROCID=$NODE SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=node1",
    }
    command = {
        "pgas.run": f"exec {sys.executable} -m pgas.run -n 1 --nnodes 2 --node-rank $NODE --master [fd00::1]:29400 {path}",
        "unique_id": f"exec {run_it} unique_id",
    }.get(how) or f"{variables[how]} exec {run_it}"
    (tmp_path / "hosts").write_text("fd00::1 node1\n")
    script = NODES.replace("COMMAND", shlex.quote(command))
    if how == "srun":
        script = f"mount --bind {shlex.quote(str(tmp_path / 'hosts'))} /etc/hosts\n{script}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM", "PGAS"))}
    environment |= {"PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1", "PGAS_TRANSPORT": "mute", "PGAS_TIMEOUT": "60"}
    environment |= {"PGAS_SECRET": "of the two machines", "PGAS_SYMMETRIC_SIZE": "16M"}
    isolated = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", script]
    subprocess.run(isolated, cwd=tmp_path, env=environment, timeout=200, check=False)
    for name in ("first", "second"):
        assert "all: ['0', '1']" in (tmp_path / name).read_text(), (tmp_path / "first").read_text() + (tmp_path / "second").read_text()


NO_LISTS = [
    "",
    ",",
    ",a",
    "a..b",
    "x" * 70,
    "n[1-2",
    "n]1[",
    "n[2-1]",
    "n[1-]",
    "n[-1]",
    "n[]",
    "[" * 10_000,
    "n" + "[1]" * 10_000,
]


@pytest.mark.parametrize("listed", NO_LISTS, ids=range(len(NO_LISTS)))
def test_what_is_not_a_list_of_hosts(listed, monkeypatch):
    monkeypatch.setenv("PATH", "")
    shown = listed if len(listed) <= 80 else f"{listed[:80]}..."
    with pytest.raises(BootstrapError) as refused:
        host_lists.first_host(listed)
    assert str(refused.value) == (
        f"SLURM_STEP_NODELIST='{shown}' must be a list of hosts, such as node[03-05,9],gpu1; only srun may set it"
    )


def test_a_list_that_only_slurm_reads(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text('#!/bin/sh\ntest "$*" = "show hostnames n[1-2x" && echo n1x && echo n2x\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert host_lists.first_host("n[1-2x") == "n1x"
    with pytest.raises(BootstrapError, match="must be a list of hosts"):
        host_lists.first_host("n[1-2y")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MASTER_ADDR", "a..b", "MASTER_ADDR: 'a..b' is not a host: "),
        ("MASTER_ADDR", "x" * 300, f"MASTER_ADDR: '{'x' * 80}...' is not a host: "),
        ("MASTER_PORT", "\N{SUPERSCRIPT TWO}", "MASTER_PORT: '\N{SUPERSCRIPT TWO}' is not an integer"),
        ("WORLD_SIZE", "5000", "according to torchrun, this is rank 0 of 5000; a job has at most 4096 PEs, from 0 on"),
    ],
)  # fmt: skip
def test_rubbish_from_a_launcher(name, value, words, monkeypatch):
    for variable, own in {**torchrun(0, 77), name: value}.items():
        monkeypatch.setenv(variable, own)
    with pytest.raises(BootstrapError) as refused:
        rendezvous.of(launched())
    assert str(refused.value).startswith(words)


def test_a_key_that_others_may_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rendezvous.job_secret("job")
    (tmp_path / "pgas" / "secret").chmod(0o644)
    with pytest.raises(
        BootstrapError, match=r"secret: this file is owned or readable by other users; run chmod 600 on it, or set PGAS_SECRET"
    ):
        rendezvous.job_secret("job")
    monkeypatch.setenv("PGAS_SECRET", "sixteen letters!")
    assert rendezvous.job_secret("job") != rendezvous.job_secret("another job")


@pytest.mark.parametrize("text", ["password", "fifteen letters"])
def test_a_secret_that_can_be_guessed(text, monkeypatch):
    monkeypatch.setenv("PGAS_SECRET", text)
    words = rf"^PGAS_SECRET=\(its value is not shown\): must have at least 16 characters, not {len(text)}; use random ones \(openssl .*\)$"
    with pytest.raises(ValueError, match=words):
        config.read("PGAS_SECRET")
    with pytest.raises(BootstrapError, match=words):
        rendezvous.job_secret("job")


# ------------------------------------------------------------------------------------------------------------------ unique ids


def test_unique_id(tmp_path):
    """One PE makes it and passes it through a file; there is no launcher."""
    text = f"""
rank, path = int(sys.argv[1]), {str(tmp_path / "id")!r}
if rank == 1:
    with open(path + "~", "wb") as file:
        file.write(pgas.unique_id("127.0.0.1"))
    os.rename(path + "~", path)
while not os.path.exists(path):
    time.sleep(0.05)
with open(path, "rb") as file:
    given = file.read()
with pgas.init(unique_id=given, rank=rank, size=2):
    body()
"""
    path = program(tmp_path, text)
    found = ended([started([sys.executable, path, str(rank)]) for rank in (0, 1)])
    assert found == [(0, "0 of 2 got 1\n", ""), (0, "1 of 2 got 0\n", "")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"unique_id": b"x" * 128, "rank": 0, "size": 1}, "unique_id must be the 128 bytes that pgas.unique_id"),
        ({"unique_id": rendezvous._MARK + b"\xff" * 120, "rank": 0, "size": 1}, "unique_id must be the 128 bytes that pgas.unique_id"),
        ({"unique_id": "text", "rank": 0, "size": 1}, "unique_id must be the 128 bytes that pgas.unique_id"),
        ({"unique_id": b"x" * 128, "rank": 2, "size": 2}, "rank must be an integer from 0 to size - 1, not rank=2 with size=2"),
        ({"unique_id": b"x" * 128, "rank": True, "size": 2}, "rank must be an integer from 0 to size - 1, not rank=True with size=2"),
        ({"unique_id": b"x" * 128, "rank": 0, "size": True}, "rank must be an integer from 0 to size - 1, not rank=0 with size=True"),
        ({"unique_id": b"x" * 128}, "unique_id, rank, and size must be given together"),
        ({"rank": 0, "size": 1}, "unique_id, rank, and size must be given together"),
        ({"comm": 1, "process_group": 2}, "one of comm, unique_id, and process_group may be given"),
    ],
)
def test_arguments_of_init(arguments, words):
    with pytest.raises(ValueError, match=words):
        pgas.init(**arguments)


def test_an_address_of_all_addresses(monkeypatch):
    """Other nodes could not connect to it. On one node, torchrun's address is not used."""
    for variable, own in {**torchrun(0, 77), "MASTER_ADDR": "0.0.0.0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(variable, own)
    with pytest.raises(BootstrapError, match=r"^MASTER_ADDR: '0\.0\.0\.0' stands for all addresses; it must be one address or name"):
        rendezvous.of(launched())
    with pytest.raises(ValueError, match=r"'::ffff:0\.0\.0\.0' stands for all addresses"):
        pgas.unique_id("::ffff:0.0.0.0")


def test_unique_ids_of_one_process(tmp_path):
    """They share a server, but their jobs are independent."""
    first, servers = rendezvous.unique_id("127.0.0.1"), len(rendezvous._servers)
    second = rendezvous.unique_id("127.0.0.1")
    assert len(rendezvous._servers) == servers
    assert first != second
    jobs = [rendezvous.at_unique_id(rendezvous.Given(given, 0, 1)) for given in (first, second, first)]
    assert [exchange(job, number) for number, job in enumerate(jobs)] == [[0], [1], [2]]
    for job in jobs:
        job.close()


def test_the_real_torchrun(tmp_path):
    """Also next to torch's own process group, and with a process group given to init()."""
    pytest.importorskip("torch")
    text = """
import torch.distributed
with pgas.init():
    body()
torch.distributed.init_process_group("gloo")
with pgas.init(process_group=torch.distributed.group.WORLD):
    body()
"""
    path = program(tmp_path, text)
    ((status, out, err),) = ended([started([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", path])])
    assert status == 0, err
    assert sorted(out.split("\n")) == ["", "0 of 2 got 1", "0 of 2 got 1", "1 of 2 got 0", "1 of 2 got 0"]


# ----------------------------------------------------------------------------------------------------------------- the real srun

SLURM = ("munged", "slurmctld", "slurmd", "sinfo", "srun")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""


@pytest.fixture
def slurm(tmp_path):
    """Return the command srun of a Slurm of our own: one machine, with its own ports and files."""
    found = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in SLURM}
    if lacking := [name for name, path in found.items() if path is None]:
        pytest.skip(f"capability missing: {', '.join(lacking)} (Debian: munge, slurmctld, slurmd, slurm-client)")
    folder, host = tmp_path / "slurm", socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key, configuration = folder / "key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    configuration.write_text(CONFIGURATION.format(folder=folder, host=host, user=getpass.getuser(), ports=(free_port(), free_port())))
    files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = [
        [found["munged"], "--foreground", "--force", f"--key-file={key}", *files],
        [found["slurmctld"], "-D", "-f", configuration],
        [found["slurmd"], "-D", "-f", configuration],
    ]
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    daemons = []
    try:
        with (folder / "log").open("wb") as log:
            daemons.extend(subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in commands)
        deadline = time.monotonic() + 60
        asking = [found["sinfo"], "--noheader", "--format=%T"]
        while subprocess.run(asking, env=environment, capture_output=True, text=True, check=False).stdout.strip() != "idle":
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield ["env", f"SLURM_CONF={configuration}", found["srun"], "-n", "2"]
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


@pytest.mark.slow
def test_the_real_srun(tmp_path, slurm):
    """Also with Slurm's PMI, whose variables MPI reads; and a PE that is killed, of which the other learns through the job."""
    path = program(
        tmp_path, "with pgas.init():\n    if body() == 1 and 'dies' in sys.argv:\n        os.kill(os.getpid(), 9)\n    pgas.barrier_all()\n"
    )
    for options in ([], ["--mpi=pmi2"]):
        ((status, out, err),) = ended([started([*slurm, *options, sys.executable, path], XDG_CONFIG_HOME=str(tmp_path))])
        assert (status, sorted(out.splitlines())) == (0, ["0 of 2 got 1", "1 of 2 got 0"]), err
    ((status, _, err),) = ended([started([*slurm, sys.executable, path, "dies"], XDG_CONFIG_HOME=str(tmp_path))])
    assert status == 137, err
    assert "was killed by signal 9: the job cannot continue" in err, err
