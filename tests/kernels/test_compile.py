"""``python -m pgas compile``: what kernels of a program need on a GPU."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from examples import ROOT

from pgas.job.blocks import RESIDENT

pytestmark = pytest.mark.sass

PROGRAM = """
import sys
import numpy as np
import pgas
from pgas import cuda

@pgas.jit(device=True)
def to_peer(array, value):
    pgas.p(array, cuda.threadIdx.x, value, 1)

@pgas.jit
def store(array, value):
    to_peer(array, value)

@cuda.jit(max_registers=32)
def plain(array, other):
    cuda.cg.this_grid().sync()
    array[0] = other[0]

@pgas.jit
def wrong(array):
    pgas.p(array, "first", 1, 0)

with pgas.init() as job:
    assert sys.argv[1:] == ["--size", "4"] and pgas.n_pes() == job.n_pes == 3
    array = pgas.zeros(4, np.float32)
    store[cuda.get_current_device().MULTIPROCESSOR_COUNT // pgas.info()["npes"], 4](array, 1.5)
    store[1, 4](array, 2.5)
    store[1, 4](pgas.zeros((2, 2), "bfloat16")[0], 1)
    pgas.launch(plain, 1, 1, (array, cuda.to_device(np.ones(4))), cuda.stream())
    pgas.zeros(4, "bfloat16").__dlpack__()
    pgas.barrier_all()
    print(array.copy_to_host())
    if array[0] == 0:
        wrong[1, 1](array)
"""


def compiled(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "NUMBA_"))}
    command = [sys.executable, "-m", "pgas", "compile", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_kernels_of_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = compiled("--pes", 3, program, "--transport", "p2p,ibgda", "--size", 4, "--json")
    assert done.returncode == 1
    line = 1 + PROGRAM.splitlines().index('    pgas.p(array, "first", 1, 0)')
    wanted = f'pgas.p: idx must be an integer, not a string ({program}:{line}: pgas.p(array, "first", 1, 0))'
    assert done.stderr == f"wrong does not compile: {wanted}\n"
    found = json.loads(done.stdout)
    assert {name: row["arguments"] for name, row in found.items()} == {
        "store": "float32[:], float64",
        "store'": "__nv_bfloat16[:], int64",
        "plain": "float32[:], float64[:]",
    }
    assert found["store"]["instructions"] > 200, "the only path is p2p"
    assert found["plain"]["instructions"] < 100
    assert found["store"]["registers"] > found["plain"]["registers"] > 0


def test_the_message_about_a_program_that_stopped():
    stopped = importlib.import_module("pgas.compile")._stopped
    assert stopped(1, AssertionError()) == "The program stopped after 1 launch: AssertionError"
    assert stopped(1, AssertionError("\nNot equal\n\n ACTUAL: 0")) == "The program stopped after 1 launch: AssertionError: Not equal"
    assert stopped(2, ValueError("bad")) == "The program stopped after 2 launches: ValueError: bad"


@pytest.mark.slow
def test_a_program_that_launches_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nraise ValueError(f'no kernels for {sys.argv[1:]}')")
    done = compiled(program, "--", "--json")
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", "The program stopped after 0 launches: ValueError: no kernels for ['--json']\n")
    program.write_text("print(1)")
    done = compiled(program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pgas: {program} launched no kernel; a kernel is compiled when the program launches it\n"


OF_THE_HOST = """
from pgas import reduce_block, sass, SUM
from pgas.api import host_collectives
from pgas.job import blocks
from pgas.kernels.compiler import types

sass.configure("p2p")
kernel = host_collectives._reducing(reduce_block, SUM, divides=True).dispatcher
built = sass.build(kernel, (types.int64, types.int8[::1], types.int8[::1], types.int64))
print(built.registers, *(host_collectives.threads_of(n) for n in (1, 64, 65, blocks.RESIDENT)))
"""


def test_kernels_of_the_host_fit_their_blocks():
    """A reduction of bytes would take 202 registers a thread."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", OF_THE_HOST], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    registers, *threads = map(int, done.stdout.split())
    assert threads == [512, 512, 256, 256]
    for blocks, of_block in ((64, threads[1]), (RESIDENT, threads[3])):
        assert 65536 // (-(-registers // 8) * 8 * of_block) * 132 >= 2 * blocks, "an H100 holds the blocks of two calls"


@pytest.mark.slow
def test_a_ptxas_that_is_older_than_libnvvm(tmp_path):
    """pgas.sass finds the real one; the program puts another in its place."""
    ptxas, program = tmp_path / "ptxas", tmp_path / "program.py"
    ptxas.write_text(
        "#!/bin/sh\necho \"ptxas k.ptx, line 9; fatal : Unsupported .version 9.4; current version is '9.0'\nptxas fatal\" >&2\nexit 255\n"
    )
    ptxas.chmod(0o755)
    program.write_text(f"""
import numpy as np
import pgas, pgas.sass

@pgas.jit
def store(array):
    array[0] = 1

pgas.sass._tool = lambda name: {str(ptxas)!r}
pgas.init()
store[1, 1](pgas.zeros(1, np.float32))
""")
    done = compiled(program)
    assert done.returncode == 1
    assert done.stderr == (
        f"pgas: {ptxas} failed (ptxas k.ptx, line 9; fatal : Unsupported .version 9.4; current version is '9.0'): "
        "pip install --upgrade 'pgas[cu13]' brings one that is as new as libnvvm\n"
    )


@pytest.mark.slow
def test_a_relative_path_is_enough_for_the_line(tmp_path):
    lines = "import pgas||@pgas.jit|def wrong(d):|    pgas.put(d, d, target=0)||pgas.init()|wrong[1, 1](pgas.zeros(1, 'i4'))|"
    (tmp_path / "wrong.py").write_text(lines.replace("|", "\n"))
    command = [sys.executable, "-m", "pgas", "compile", "wrong.py"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.stderr.endswith(f"({tmp_path}/wrong.py:5: pgas.put(d, d, target=0))\n"), done.stderr
