"""PGAS_DEBUG=strict: compiles the simulator's kernels for a GPU, in a process of its own, and reports those that the compiler rejects.

The process is a child (gpu_verdicts.py), because Numba decides between simulator and GPU once per process. It reads pickles from its
parent's pipe: the import path and the constants of kernels, then kernels (sim/transfer.py). It answers each kernel with a line of JSON.
"""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

from pgas.base import interpreter
from pgas.base.launcher import launched_rank
from pgas.kernels import window
from pgas.sim import transfer


class GPUCompiler:
    """The process, which starts with the first kernel; a context manager that ends it."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, tuple[Any, ...]]] = set()  #: functions that compile, with types of arguments
        self._process: Any = None
        self._lock = threading.Lock()

    def __enter__(self) -> "GPUCompiler":
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # Closing its pipe does not suffice, because a process that the program forked may hold it open.
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def check(self, kernel: Any, args: tuple[Any, ...]) -> None:
        """Compile a kernel of the user, once for the types of its arguments.

        Raises:
            TypeError: if the compiler rejects it; the message is one sentence, with the user's line.
        """
        module = kernel.fn.__module__ or ""  # A function of exec() may have none.
        if module.startswith("pgas.") or kernel.extensions:
            return
        types = transfer.types_of(args)
        with self._lock:
            if (kernel.fn, types) in self._seen:
                return
            refused, unknown = self._ask(kernel, types)
            if not refused:
                self._seen.add((kernel.fn, types))
        if unknown and launched_rank() in (None, 0):
            print(f"pgas: PGAS_DEBUG=strict: kernel {kernel.__name__} was not compiled for a GPU: {unknown}", file=sys.stderr)
        if refused:
            raise TypeError(f"PGAS_DEBUG=strict: a GPU's compiler rejects kernel {kernel.__name__}: {refused}")

    def _ask(self, kernel: Any, types: tuple[Any, ...]) -> tuple[str, str]:
        """Return why the compiler rejects a kernel, and why the kernel could not be compiled at all."""
        try:
            data = pickle.dumps(transfer.dumps(kernel, types))
        except Exception as error:  # A global of the kernel may raise an error of any class.
            return "", f"{type(error).__name__}: {error}"
        if self._process is None:
            environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
            command = interpreter.command("pgas.job.gpu_verdicts")
            # It has a session of its own, because Ctrl-C on a terminal is for the PE. It ends when its pipe does.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
            data = pickle.dumps((sys.path, window.constants())) + data
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(data)
                self._process.stdin.flush()
            refused, unknown = json.loads(self._process.stdout.readline() or '["", "the compiling process has ended"]')
        except BaseException:  # After Ctrl-C, for example, the next kernel must not read this one's answer.
            self._end()
            raise
        return refused, unknown
