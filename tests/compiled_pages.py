"""Compiles the kernels of programs in README and docs for a GPU, with no GPU: ``python compiled_pages.py TRANSPORT``.

Each program with a kernel runs up to its first launch in a fake job: its arrays are NumPy's, and the launch only compiles.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
from examples import PAGES, programs
from numba import typeof, types

import pgas
from pgas.api.jit import Kernel
from pgas.job import runtime
from pgas.perftests import sass


class Compiled(Exception):
    """Raised when the kernel of a program has been compiled."""


def compile_for(kernel, args):
    """Compile a kernel for the types that its arguments have on a GPU."""
    ptx = sass.compile_ptx(kernel.dispatcher.py_func, tuple(types.int64 if type(a) is int else typeof(a) for a in args))
    assert kernel.__name__ in ptx
    raise Compiled


def configured(kernel, configuration):
    return lambda *args: compile_for(kernel, args)


def played():
    """Return pgas with a fake job."""
    return (
        mock.patch.object(pgas, "init", contextlib.nullcontext),
        mock.patch.object(runtime, "current", return_value=SimpleNamespace(my_pe=0, n_pes=2)),
        mock.patch.object(pgas, "zeros", lambda shape, dtype=np.float64: np.zeros(shape, dtype)),
        mock.patch.object(pgas, "full", lambda shape, value, dtype=None: np.full(shape, value, dtype)),
        mock.patch.object(pgas, "array", np.asarray),
        mock.patch.object(pgas, "zeros_like", np.zeros_like),
        mock.patch.object(pgas, "full_like", np.full_like),
        mock.patch.object(pgas, "launch", lambda kernel, grid, block, args=(): compile_for(kernel, args)),
        mock.patch.object(Kernel, "__getitem__", configured),
    )


def main(transport):
    sass.configure(transport)
    for page in PAGES:
        for name, text in programs(page, "@pgas.jit").items():
            code = compile(text, name, "exec")
            with contextlib.ExitStack() as stack:
                for patch in played():
                    stack.enter_context(patch)
                try:
                    exec(code, {"__name__": "__main__"})
                except Compiled:
                    print(f"{page.name} {name}")


if __name__ == "__main__":
    main(sys.argv[1])
