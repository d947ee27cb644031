"""The encoding of what processes of a job send each other."""

import ast
import os
import pickle

import pytest
from test_architecture import SOURCES, tree

from pgas.base import plain
from pgas.job.bootstrap import protocol


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 1 << 200, -(1 << 63), 0.5, float("inf"), "", "é\udc80", b"\0", [], (), [1, ("a", [b"", None])], (True, 1)],
)
def test_plain_values(value):
    """They come back equal, with their types."""
    assert repr(plain.loads(plain.dumps(value))) == repr(value)


@pytest.mark.parametrize("value", [{}, {1}, object(), 1j, [{}]])
def test_values_that_are_not_plain(value):
    with pytest.raises(TypeError, match=r"plain value: a \w+ must be sent as None, bool, int, float, str, bytes, list or tuple"):
        plain.dumps(value)


def test_a_value_that_is_nested_too_deep():
    value = []
    for _ in range(plain.DEPTH_MAX + 1):
        value = [value]
    with pytest.raises(ValueError, match="nested deeper than 16"):
        plain.dumps(value)


@pytest.mark.parametrize("value", [None, 1 << 70, "text", [b"bytes", (0.5, True)]])
def test_an_encoding_that_is_cut_short_or_goes_on(value):
    data = plain.dumps(value)
    for wrong in (*(data[:n] for n in range(len(data))), data + b"\0"):
        with pytest.raises(ValueError, match="plain value"):
            plain.loads(wrong)


def test_nothing_that_comes_is_unpickled(tmp_path):
    """Neither by exchange(), whose values are plain, nor elsewhere: the only pickles are users' objects, files of the disk cache, what a
    PE passes to its own child through a pipe (PGAS_DEBUG=strict), and logs that python -m pgas.check reads in its own folder."""

    class Two:
        def allgather(self, data, poll):
            return [data, pickle.dumps(Evil(tmp_path / "made"))]

    with pytest.raises(ValueError, match="plain value"):
        protocol.exchange(Two(), "mine")
    assert not (tmp_path / "made").exists()
    unpickle = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    found = {
        module
        for module in SOURCES
        for node in ast.walk(tree(module))
        if (isinstance(node, ast.Import) and unpickle & {name.name for name in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module in unpickle)
    }
    own = {"pgas.base.disk_cache", "pgas.check.log", "pgas.job.gpu_compiler", "pgas.job.gpu_verdicts", "pgas.sim.transfer"}
    assert found == {"pgas.api.host", *own}
