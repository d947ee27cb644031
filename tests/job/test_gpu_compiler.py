"""The process that compiles kernels for a GPU (PGAS_DEBUG=strict): how it ends. tests/mpi/test_strict.py has what it compiles."""

import os
import signal
import subprocess
import threading
import time

import pytest

from pgas.job import gpu_compiler
from pgas.job.gpu_compiler import GPUCompiler


@pytest.fixture
def compiler():
    """Return a GPUCompiler whose process reads until its pipe ends, and never answers."""
    made = GPUCompiler()
    process = made._process = subprocess.Popen(
        ["/bin/sh", "-c", "while read -r line; do :; done"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield made
    process.kill()
    process.communicate()


def test_a_forked_child_holds_the_pipe(compiler):
    """The compiler ends nevertheless, while the child lives."""
    process = compiler._process
    if not (child := os.fork()):
        time.sleep(100)
        os._exit(0)
    try:
        ends = threading.Thread(target=compiler.__exit__, args=(None, None, None))
        ends.start()
        ends.join(20)
        assert not ends.is_alive()
        assert process.returncode == -signal.SIGKILL
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ends.join()


def test_an_interrupt_while_it_compiles(compiler, monkeypatch):
    """The process ends, because its answer would be taken for the next kernel's."""
    process = compiler._process
    monkeypatch.setattr(gpu_compiler.transfer, "dumps", lambda kernel, types: b"a kernel")
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        compiler._ask(None, ())
    interrupt.join()
    assert compiler._process is None
    assert process.returncode == -signal.SIGKILL
