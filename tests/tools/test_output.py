"""Commands whose output loses its reader, as with ``| head``, end without a word about it, with the status that they would have had."""

import os
import subprocess

import forks
import pytest
from examples import ROOT

from pgas import __main__

PROGRAM = """
import pgas
@pgas.jit
def nothing():
    pass
with pgas.init():
    nothing[1, 1]()
"""

#: Arguments of ``python -m pgas COMMAND``, where it needs any.
ARGUMENTS = {"compile": ["program.py"]}

COMMANDS = {f"pgas {name}": ["-m", "pgas", name, *ARGUMENTS.get(name, ())] for name in __main__._COMMANDS} | {
    "check": ["-m", "pgas", "check", "-n", "2", str(ROOT / "tests" / "races" / "flag_after_p.py")],
    "explain": ["-m", "pgas", "doctor", "--explain", "no CUDA-capable device"],
    "json": ["-m", "pgas", "doctor", "--json"],
    "compare": ["-m", "pgas.perftests.compare"],
    "jacobi": ["-m", "pgas.perftests.jacobi", "-nx", "8", "-ny", "6", "-niter", "2"],
}


def run(arguments, stdout, folder=ROOT, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
    environment |= {"NUMBA_ENABLE_CUDASIM": "1", **variables}
    return subprocess.Popen([forks.python(), *arguments], cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


#: In make check; all others end by the same function.
CHECKED = ("pgas info", "pgas doctor", "check")


@pytest.fixture
def unread():
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def without_notes(text):
    return [line for line in text.splitlines() if "no CUDA device here" not in line]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in CHECKED else pytest.mark.slow) for name in COMMANDS])
def test_a_command(name, unread, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    read, not_read = (run(COMMANDS[name], out, tmp_path) for out in (subprocess.DEVNULL, unread))
    (_, wanted), (_, found) = read.communicate(timeout=200), not_read.communicate(timeout=200)
    assert (not_read.returncode, without_notes(found)) == (read.returncode, without_notes(wanted))


def test_the_table_of_a_perf_test(unread):
    """PE 0 prints. Its launcher is torchrun, which leaves its PEs its own stdout; with an exception PE 0 would have ended the job."""
    of_torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 12000)}
    table = ["-m", "pgas.perftests.shmem_put_bw", "-b", "8", "-e", "16"]
    pes = [run(table, unread, RANK=str(rank), LOCAL_RANK=str(rank), **of_torchrun) for rank in range(2)]
    ended = [(pe.returncode, without_notes(err)) for pe, err in [(pe, pe.communicate(timeout=200)[1]) for pe in pes]]
    assert ended == [(0, []), (0, [])]
