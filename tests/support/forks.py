"""A fork server: one Python imports modules once, and forks itself for every ``python`` that is run under it.

``python forks.py MODULE,... COMMAND...`` imports the modules and runs a command with another ``python`` first in PATH: a client
(forks_client.py) that sends its arguments, environment, folder and open files to the server, waits for the fork, and exits with its status.
If the client ends, its fork is ended. With options other than -m, -c and -u a real interpreter is started. Variables that Python or Numba
read when they start are those of the server.

python() returns such a client for tests: importing pgas takes a second, a fork 50 ms. The parent of a fork is the server, and signals to a
client do not reach its fork, so tests of deaths start real Pythons. rxe.forks does the same in the guest, where the processor is emulated.
"""

import array
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Request", "Server", "python", "run"]

#: Modules that python() imports: those that a PE imports before and while its job starts.
OF_PGAS = ("pgas", "pgas.sim.memory", "pgas.transports.ibrc.nic", "pgas.transports.softhca.process.client", "mpi4py")

MAX_FILES = 253  # in one message (the kernel's SCM_MAX_FD)
CLIENT = Path(__file__).with_name("forks_client.py")


@dataclass(frozen=True)
class Request:
    """A program to run, as ``python ARGUMENTS`` would."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    files: dict[int, int]  # descriptor in the program -> descriptor here

    @classmethod
    def receive(cls, connection: socket.socket) -> "Request":
        """Read a client's request: its open files with the length of the rest, then the rest (marshal).

        Raises:
            ConnectionError: the client ended meanwhile.
        """
        head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(4 * MAX_FILES))
        received = array.array("i")
        for _, _, data in ancillary:
            received.frombytes(data)
        body = b""
        while len(body) < int.from_bytes(head, "little"):
            if not (part := connection.recv(1 << 16)):
                break
            body += part
        if not body or len(body) < int.from_bytes(head, "little"):
            raise ConnectionError("a client ended in the middle of its request")
        arguments, environment, folder, numbers = marshal.loads(body)
        decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
        return cls(arguments, decoded, folder, dict(zip(numbers, received, strict=True)))

    def take_place(self) -> None:
        """In a fork: take over the client's files and no others, its environment, folder and search path."""
        above = 1 + max(*map(int, os.listdir("/proc/self/fd")), *self.files)
        copies = {number: fcntl.fcntl(received, fcntl.F_DUPFD, above) for number, received in self.files.items()}
        os.closerange(0, above)
        for number, copy in copies.items():
            os.dup2(copy, number)
        os.closerange(above, above + len(copies))
        for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            stream = open(number, mode, buffering=1, closefd=False) if number in copies else None  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        paths = [path for path in self.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]

    def run(self) -> None:
        first, *rest = self.arguments[1:] if self.arguments[0] == "-u" else self.arguments
        if first == "-c":
            sys.argv, program = ["-c", *rest[1:]], types.ModuleType("__main__")
            sys.path.insert(0, "")
            sys.modules["__main__"] = program
            exec(compile(rest[0], "<string>", "exec"), program.__dict__)
        elif first == "-m":
            sys.argv = rest
            sys.path.insert(0, self.folder)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest]
            sys.path.insert(0, str(Path(first).parent.resolve()))
            runpy.run_path(first, run_name="__main__")


class Server:
    """Makes forks for clients until its command has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forks-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / "socket"))
        self._listener.listen(64)
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, and the waiting client
        client = f"#!{sys.executable} -IS\nREAL, SOCKET = {sys.executable!r}, {str(self.folder / 'socket')!r}\n{CLIENT.read_text()}"
        for name in ("python", "python3"):
            (self.folder / name).write_text(client)
            (self.folder / name).chmod(0o755)
        path = f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        program = shutil.which(command[0], path=path) or command[0]
        self._command = os.posix_spawn(program, command, {**os.environ, "PATH": path, "FORKS_PATH": f"{self.folder}{os.pathsep}"})
        self._ended = os.pidfd_open(self._command)

    def serve(self) -> Request | int:
        """Return the command's exit status when it ends; in a fork, the request to run."""
        while True:
            clients = {client.fileno(): pidfd for pidfd, (_, client) in self._forks.items()}
            ready, _, _ = select.select([self._listener, self._ended, *self._forks, *clients], [], [])
            for ended in {source for source in ready if source in self._forks}:
                self._reap(ended)
            for left in {clients[source] for source in ready if source in clients} & self._forks.keys():  # ended clients
                self._kill(left)
            if self._ended in ready:
                return os.waitstatus_to_exitcode(os.waitpid(self._command, 0)[1])
            if self._listener in ready and (request := self._fork()) is not None:
                return request

    def _fork(self) -> Request | None:
        client, _ = self._listener.accept()
        try:
            request = Request.receive(client)
        except OSError:
            client.close()
            return None
        if (pid := os.fork()) == 0:
            client.detach()
            return request
        for number in request.files.values():
            os.close(number)
        self._forks[os.pidfd_open(pid)] = (pid, client)
        return None

    def _reap(self, pidfd: int) -> None:
        pid, client = self._forks.pop(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(pidfd)
        with client, contextlib.suppress(OSError):
            client.sendall(status.to_bytes(2, "little", signed=True))

    def _kill(self, pidfd: int) -> None:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._reap(pidfd)

    def forget(self) -> None:
        """In a fork: drop the server's state, whose descriptors are closed by number."""
        self._listener.detach()
        for _, client in self._forks.values():
            client.detach()

    def close(self) -> None:
        """End the command and all forks, and remove all files."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)
            os.waitpid(self._command, 0)
        os.close(self._ended)
        for pidfd in list(self._forks):
            self._kill(pidfd)
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(command: Sequence[str], *, nested: bool) -> int:
    """Serve a command and return its exit status (128 and more: a signal); in a fork, run the request.

    Args:
        command: program and arguments.
        nested: whether sys.executable is a client in forks, too. A software card must be a child of its PE.
    """
    gc.collect()
    gc.freeze()  # untouched pages stay shared with the forks
    server = Server(command)
    try:
        outcome = server.serve()
    except BaseException:
        server.close()
        raise
    if isinstance(outcome, Request):
        server.forget()
        outcome.take_place()
        if nested:
            sys.executable = str(server.folder / "python")
        outcome.run()
        return 0
    server.close()
    return outcome if outcome >= 0 else 128 - outcome


@functools.cache
def python() -> str:
    """Return the client of a server that has imported pgas for the simulator. The server lives as long as this process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, __file__, ",".join(OF_PGAS), "sh", "-c", "command -v python; exec cat"]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # it ends when cat does
    atexit.register(lambda: server.communicate(timeout=60))
    assert server.stdout is not None
    return server.stdout.readline().rstrip("\n")


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    for module in sys.argv[1].split(","):
        importlib.import_module(module)
    sys.exit(run(sys.argv[2:], nested=False))
