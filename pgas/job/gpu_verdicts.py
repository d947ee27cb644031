"""The process that compiles the simulator's kernels for a GPU, for gpu_compiler.py: ``python -m pgas.job.gpu_verdicts``."""

import json
import os
import pickle
import sys

from cuda import pathfinder
from cuda.bindings import nvvm

from pgas.base.model import COMPUTE_CAPABILITY
from pgas.kernels import window
from pgas.kernels.compiler import compiler
from pgas.kernels.compiler.reason import reason


def missing() -> str:
    """Return what the compiler lacks on this machine, "" if it can compile."""
    for library, ask in (("libNVVM", nvvm.ir_version), ("libnvrtc", lambda: pathfinder.load_nvidia_dynamic_lib("nvrtc"))):
        try:
            ask()
        except Exception as error:  # cuda.bindings has errors of several classes.
            return f"{library} is missing, which pip install 'pgas[cu13]' brings ({str(error).splitlines()[0]})"
    return ""


def _verdict(data: bytes) -> tuple[str, str]:
    """Return why a kernel does not compile, and why the kernel could not be read."""
    try:
        function, types = pickle.loads(data)
    except Exception as error:  # An import of the user's modules may raise an error of any class.
        return "", f"{type(error).__name__}: {error}"
    try:
        compiler.ptx(function, types, COMPUTE_CAPABILITY)
    except Exception as error:  # The compiler has errors of several classes.
        return reason(error, function), ""
    return "", ""


def main() -> None:
    """Compile kernels from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Because the user's modules may print when they are imported.
    sys.path[:], constants = pickle.load(sys.stdin.buffer)
    window.freeze(constants)
    lacking = missing()
    while True:
        try:
            data = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        print(json.dumps(("", lacking) if lacking else _verdict(data)), file=answers, flush=True)


if __name__ == "__main__":
    main()
