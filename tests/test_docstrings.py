"""Every public function and class has an example in its docstring; all of them run, on two PEs."""

import inspect
import os
import subprocess
from pathlib import Path

import docstrings
import forks
import pytest
import reference
from jobs import LIMIT, launcher

import pgas


def described():
    """Return the names with a docstring of their own: not the forms for a warp or block, nor errors."""
    values = {name: getattr(pgas, name) for name in pgas.__all__ if reference.head_of(name) == name}
    return {name for name, v in values.items() if callable(v) and not (inspect.isclass(v) and issubclass(v, BaseException))}


def test_every_docstring_has_an_example():
    assert described() - docstrings.examples().keys() == set()


@pytest.mark.parametrize("name", sorted(described()))
def test_examples_are_of_their_function(name):
    """An example calls what it describes, in whichever form; that of a class makes one."""
    text = "".join(example.source for example in docstrings.examples()[name].examples)
    assert f"pgas.{name}" in text or inspect.isclass(getattr(pgas, name))


def test_examples_run():
    environment = os.environ | {"PGAS_TRANSPORT": "p2p", "NUMBA_ENABLE_CUDASIM": "1"}
    command = [*launcher(2), forks.python(), str(Path(docstrings.__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{len(docstrings.examples())} examples, 0 failures") == 2, done.stdout
