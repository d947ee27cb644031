"""Upper bounds of requirements: what each is for, and whether there is a release beyond it by now."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from examples import ROOT

#: What broke with the first release beyond a bound. None: there was no such release on 2026-11-26.
BEYOND = {
    "numba-cuda==0.30.4": None,
    "numba>=0.68,<0.69": None,
    "numpy>=2.2,<2.5": "numba-cuda 0.30.4 uses numpy.row_stack, which 2.5 does not have",
    "cuda-bindings>=12.9.10,<14": None,
    "cuda-core>=1.2,<2": None,
}

#: Compiles a kernel with a NumPy that lacks an attribute.
PROGRAM = """
import numpy
if "{lacks}":
    del numpy.{lacks}
import pgas, pgas.sass
from numba.cuda import types
pgas.sass.configure("p2p")
def store(dest):
    dest[0] = pgas.my_pe()
pgas.sass.build(store, (types.int64[::1],))
"""


def bounded():
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        if re.search("<|==", line):
            yield line


def test_every_bound_has_its_reason():
    assert list(bounded()) == list(BEYOND)


@pytest.mark.sass
@pytest.mark.slow
@pytest.mark.parametrize(("lacks", "fails"), [("", False), ("row_stack", True)])
def test_numpy_without_row_stack(lacks, fails):
    """If this one compiles, numba-cuda works with NumPy 2.5: raise the bound."""
    program = PROGRAM.format(lacks=lacks) if lacks else PROGRAM.replace('if "{lacks}":\n    del numpy.{lacks}\n', "")
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stderr
    assert ("module 'numpy' has no attribute 'row_stack'" in done.stderr) == fails


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line, why in BEYOND.items() if why is None])
def test_no_release_beyond_the_bound(line):
    """If this fails, try the new release, and write down what breaks or raise the bound."""
    name, bound = re.match(r"([\w-]+).*(?:<|==)([\d.]+)$", line).groups()
    listed = subprocess.run([sys.executable, "-m", "pip", "index", "versions", name], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("no package index")
    newest, limit = (tuple(map(int, text.split("."))) for text in (re.search(r"\(([\d.]+)\)", listed.stdout)[1], bound))
    assert newest == limit if "==" in line else newest < limit
