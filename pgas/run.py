"""``pgas run -n 4 prog.py args``, or ``python -m pgas.run``: start the PEs of a job on this node, without MPI.

A program that ends in .py, or follows -m, runs in this Python; any other program is a command. Each line of a PE's output begins with
``[PE n]``, except in a job of one PE. The first PE that fails ends the others, and its exit status is the command's: 128 + N if signal N
killed it. In a job on several nodes, every command with a failed PE returns this status. PE 0 gets the standard input of its command.

With --as-nvshmem, a program written for nvshmem4py runs on pgas: its ``import nvshmem.core`` finds pgas.nvshmem. A program that uses MPI
must be started by mpirun: ``mpirun -n 4 python -m pgas.run --as-nvshmem prog.py``.

To start a job on several nodes, run the command on each node, with the same --nnodes and --master (an address of the first node and a port
that is free there) and its own --node-rank. PEs are numbered in the order of the nodes; nodes may start different numbers of PEs.
"""

import argparse
import contextlib
import errno
import functools
import itertools
import json
import os
import re
import resource
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from pgas.base import config
from pgas.base.arguments import Parser, host_and_port, within
from pgas.base.errors import BootstrapError
from pgas.base.launcher import LAUNCHED, MAX_PES, environment, has_launchers_variables, launched, parents_launcher
from pgas.base.liveness import LastWord
from pgas.base.output import outlive_reader
from pgas.base.standard_input import StandardInput
from pgas.base.text import printable
from pgas.base.waits import say
from pgas.job.bootstrap.own_addresses import loopback, outward
from pgas.job.bootstrap.protocol import exchange
from pgas.job.bootstrap.rendezvous import job_secret
from pgas.job.bootstrap.store import News, Store
from pgas.job.bootstrap.store_messages import LAUNCHERS, Address
from pgas.job.bootstrap.store_server import StoreServer

#: Seconds for PEs to end by themselves after one has failed or after Ctrl-C, after news of another node, and seconds after SIGTERM.
_GRACE_S, _NEWS_GRACE_S, _TERM_S = 6.0, 4.0, 2.0

_INTERRUPTED = 128 + signal.SIGINT

#: Maximum number of bytes of a line to keep; a longer line is passed on as several.
_LINE_MAX = 1 << 20

#: Number of PEs to start before output and signals are handled again.
_BATCH = 8

#: Minimum resources of a PE: memory of a Python that has imported pgas, and descriptors here (two pipes, two connections).
_PE_BYTES, _PE_FILES = 64 << 20, 4

#: Number of descriptors kept for this command itself; it needs fewer.
_OWN_FILES = 64


@dataclass
class _PE:
    """A PE that this command started."""

    rank: int
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return f"PE {self.rank} (process {self.process.pid})"

    def ended(self) -> int | None:
        """Return its exit status, -N if signal N killed it, or None while it runs.

        It stays a zombie, so that no other process gets its pid, which is also its group's.
        """
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class _NoProgram(Exception):
    """The program cannot be started."""

    def __init__(self, program: str, error: OSError) -> None:
        what = f"{printable(program, 4096)} cannot be started: {error.strerror}"
        super().__init__(f"{what}; a Python program has a name that ends in .py, or follows -m")
        self.status = {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}.get(error.errno or 0, 1)  # The statuses of shells.


def main(arguments: Sequence[str] | None = None, name: str = "python -m pgas.run") -> int:
    """Run the command line. name: the command's name in help and errors. Returns the job's exit status."""
    outlive_reader()
    asked = _parse(arguments, name)
    command = _command(asked)
    try:
        if asked.n == 1 and asked.nnodes == 1:
            try:
                if asked.stdin == "none":
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.execvpe(command[0], command, environment() | ({} if asked.joins else _alone()))
            except OSError as error:
                raise _NoProgram(command[0], error) from error
        with contextlib.ExitStack() as ending:
            return _run(asked, command, ending)
    except _NoProgram as error:
        say(f"pgas.run: {error}")
        return error.status
    except BootstrapError as error:
        say(f"pgas.run: {error}")
        return 1
    except KeyboardInterrupt:  # No PE has been started yet.
        return _INTERRUPTED


def _parse(arguments: Sequence[str] | None, name: str) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    transports = {"PGAS_TRANSPORT"}  # The program may register some.
    parser = Parser(prog=name, description=__doc__, formatter_class=form, unread=transports, starts_jobs=True)
    count = within(1, MAX_PES)
    parser.add_argument("-n", type=count, default=1, metavar="N", help="number of PEs on this node (default: 1)")
    parser.add_argument("-np", dest="n", type=count, default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # as for mpirun
    parser.add_argument("--nnodes", type=count, default=1, metavar="N", help="number of nodes (default: 1)")
    parser.add_argument("--node-rank", type=within(0, MAX_PES - 1), default=0, metavar="I", help="number of this node, from 0 (default: 0)")
    parser.add_argument("--master", type=host_and_port, metavar="HOST:PORT", help="address at which node 0 listens; required with --nnodes")
    receivers = "PEs that get the command's standard input (default: 0)"
    parser.add_argument("--stdin", choices=("none", "0", "all"), default="0", help=receivers)
    parser.add_argument("--as-nvshmem", action="store_true", help="let `import nvshmem` find pgas.nvshmem; also in processes of mpirun")
    parser.add_argument("-m", action="store_true", dest="module", help="the program is a Python module")
    parser.add_argument("program", help="program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments").required = False  # Otherwise errors name it.
    asked = parser.parse_args(arguments)
    try:
        started = parents_launcher()
        asked.joins = asked.as_nvshmem and asked.n == asked.nnodes == 1 and launched() is not None  # A PE of that launcher's job.
    except ValueError as error:
        parser.error(str(error))
    if asked.nnodes == 1 and started is not None and started.size != 1 and not asked.joins:
        parser.error(f"this command was started by {started.launcher} already: {asked.program} needs no second launcher")
    if asked.as_nvshmem and not asked.module and not asked.program.endswith(".py"):
        parser.error(f"--as-nvshmem: {asked.program} must be a Python program, with a name that ends in .py, or a module (-m)")
    if asked.node_rank >= asked.nnodes:
        parser.error(
            f"argument --node-rank: {asked.node_rank} is out of range; with --nnodes {asked.nnodes} it must be 0 to {asked.nnodes - 1}"
        )
    if asked.master and asked.nnodes == 1:
        parser.error("argument --master: only jobs on several nodes have it; add --nnodes")
    if asked.nnodes > 1 and not asked.master:
        parser.error(f"--nnodes {asked.nnodes} needs --master HOST:PORT, an address of node 0 and a port that is free there")
    most, why = min(_room())
    if asked.n > (most := max(1, most)):
        parser.error(f"argument -n: {asked.n} PEs are too many here; it must be 1 to {most}, because {why}")
    asked.host, asked.port = asked.master or (loopback(), 0)
    return asked  # type: ignore[no-any-return]


def _room() -> Iterator[tuple[int, str]]:
    """Yield maximum numbers of PEs for this node, with the reasons."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if files != resource.RLIM_INFINITY:
        yield (files - _OWN_FILES) // _PE_FILES, f"a process may open {files} files (ulimit -Hn)"
    if processes != resource.RLIM_INFINITY:
        yield processes, f"a user may have {processes} processes (ulimit -u)"
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(re.search(r"MemAvailable: *([0-9]+) kB", file.read())[1]) << 10  # type: ignore[index]
    yield memory // _PE_BYTES, f"{memory >> 20} MiB of memory are available, and each takes {_PE_BYTES >> 20} MiB or more"


def _allow_files(pes: int) -> None:
    """Raise the soft limit of descriptors to what this command and its PEs need, up to the hard limit. PEs inherit it.

    A PE needs some descriptors of its own and, while it maps the heap, one for every peer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OWN_FILES + max(_PE_FILES * pes, 2 * pes)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))


def _command(asked: argparse.Namespace) -> list[str]:
    if asked.as_nvshmem:
        return [sys.executable, "-m", "pgas.nvshmem", *(["-m"] if asked.module else []), asked.program, *asked.args]
    if asked.module:
        return [sys.executable, "-m", asked.program, *asked.args]
    return [*([sys.executable] if asked.program.endswith(".py") else []), asked.program, *asked.args]


def _alone() -> dict[str, str]:
    """Return the variable of the only PE of a job. It needs none, unless it has variables of other launchers."""
    told = {"rank": 0, "size": 1, "host": "", "port": 0, "secret": "", "word": [], "launcher": os.getpid()}
    return {LAUNCHED: json.dumps(told)} if has_launchers_variables() else {}


def _run(asked: argparse.Namespace, command: list[str], ending: contextlib.ExitStack) -> int:
    _allow_files(asked.n)
    address, first, size, launchers = _meet(asked, ending)
    _allow_files(size)  # If there are other nodes, more PEs.
    word = LastWord()
    ending.callback(word.close)
    guard = _Guard()
    ending.callback(guard.end)
    pes: list[_PE] = []
    ending.callback(lambda: _kill(pes))
    told = {"size": size, "host": address.host, "port": address.port, "secret": address.secret.hex(), "word": word.fds}
    told["launcher"] = os.getpid()
    lines = selectors.DefaultSelector()
    given = StandardInput(asked.stdin, lines)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If the parent ignores SIGCHLD, PEs would leave no status.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # Because nohup ignores SIGHUP.
            signal.signal(number, lambda received, _: asked_to_end.append(received))
    starting = (_start(command, rank, told, word, lines, guard, given) for rank in range(first, first + asked.n))
    try:
        return _watch(pes, starting, lines, given, word, launchers, asked_to_end)
    except (_NoProgram, BootstrapError) as error:
        launchers.say_fate(first + len(pes), 0, f"was not started: {error}"[:1024], getattr(error, "status", 1))
        raise


class _Guard:
    """The process that kills the PEs if this command is killed: a shell, which reads their pids until no process can write to its pipe.

    Each PE writes its pid before it executes the program, and holds the pipe until then, so that the shell misses no PE.
    """

    _SCRIPT = 'trap "" INT TERM HUP; while read -r pid; do pids="$pids -$pid"; done; kill -s KILL -- $pids'

    def __init__(self) -> None:
        self._pids, self._register = os.pipe()  # Open here too: a PE that writes needs a reader.
        null = subprocess.DEVNULL
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT], stdin=self._pids, stdout=null, stderr=null, cwd="/", start_new_session=True
        )

    def enter(self) -> None:
        """Register a PE, in its process before it executes the program, and let SIGINT end it.

        A shell ignores SIGINT for commands in the background, and programs inherit that. A PE receives no Ctrl-C from the terminal.
        """
        os.write(self._register, b"%d\n" % os.getpid())
        for number in (signal.SIGINT, signal.SIGTTIN):
            signal.signal(number, signal.SIG_DFL)

    def end(self) -> None:
        """End the guard without killing PEs."""
        self._shell.kill()
        self._shell.wait()
        os.close(self._register)
        os.close(self._pids)


def _meet(asked: argparse.Namespace, ending: contextlib.ExitStack) -> tuple[Address, int, int, Store]:
    """Return the job's store, this node's first rank, the number of PEs, and the connection to the store, and thus to other launchers."""
    if asked.nnodes == 1:
        address = Address(asked.host, 0, secrets.token_bytes(32))
    else:
        address = Address(outward(asked.host), asked.port, job_secret(f"pgas.run {asked.host}:{asked.port}"))
    if asked.node_rank == 0:
        server = StoreServer(address.host, address.port, address.secret)
        address = server.address
        ending.callback(server.close)
        if asked.nnodes > 1:
            ending.push(functools.partial(_drain, server))
    launchers = Store(address, asked.node_rank, asked.nnodes, LAUNCHERS, config.read("PGAS_TIMEOUT"))
    ending.push(functools.partial(_leave, launchers))
    late = time.monotonic() + config.read("PGAS_TIMEOUT")

    def give_up() -> None:
        if time.monotonic() > late:
            missing = ", ".join(map(str, sorted(launchers.missing or ())))
            raise BootstrapError(f"node {missing} of {asked.nnodes} has not connected to {address} (--node-rank {missing})")

    counts = exchange(launchers, asked.n, give_up)
    if sum(counts) > MAX_PES:
        raise BootstrapError(f"the nodes start {' + '.join(map(str, counts))} PEs, but a job has at most {MAX_PES}")
    return address, sum(counts[: asked.node_rank]), sum(counts), launchers


def _drain(server: StoreServer, kind: type[BaseException] | None, *_: object) -> None:
    """Let the other nodes' processes leave the store. Without an exception, the other launchers go on without it."""
    server.in_order = kind is None
    server.drain()


def _leave(launchers: Store, kind: type[BaseException] | None, *_: object) -> None:
    """Leave the other launchers; after an exception without BYE, so that they end their PEs."""
    if kind is None:
        launchers.close()
    else:
        launchers.forget()


def _start(
    command: list[str], rank: int, told: dict[str, Any], word: LastWord, lines: selectors.BaseSelector, guard: _Guard, given: StandardInput
) -> _PE:
    """Start a PE in its own process group, so that a Ctrl-C at a terminal reaches it once, from this command."""
    variables = environment() | {LAUNCHED: json.dumps({"rank": rank, **told})}
    try:
        with given.of(rank) as stdin:
            process = subprocess.Popen(
                command, env=variables, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                pass_fds=word.fds, process_group=0, preexec_fn=guard.enter,
            )  # fmt: skip
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise BootstrapError(
                f"PE {rank} cannot be started, because a limit of processes is reached (ulimit -u, or the cgroup's pids.max)"
            ) from error
        raise _NoProgram(command[0], error) from error
    for pipe, shown in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
        os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
        lines.register(pipe, selectors.EVENT_READ, _Lines(f"[PE {rank}] ".encode(), shown.buffer))  # type: ignore[arg-type]
    return _PE(rank, process)


class _Lines:
    """Passes on a PE's output in whole lines, marked with its number. A carriage return also ends a line, for progress bars.

    Lines of more than _LINE_MAX bytes are divided, because this command must not keep an unlimited amount of output.
    """

    def __init__(self, mark: bytes, shown: IO[bytes]) -> None:
        self._mark, self._shown = mark, shown
        self._rest: list[bytes] = []  #: Pieces, because joining them each time would take quadratic time
        self._kept = 0  #: Number of bytes in them
        self._returned = False  #: Whether the last byte was a carriage return, which a newline may follow

    def add(self, data: bytes) -> None:
        if self._returned and data.startswith(b"\n"):
            self._write(b"\n")
            data = data[1:]
        self._returned = data.endswith(b"\r")
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            lines = b"".join([*self._rest, data[:end]]).splitlines(keepends=True)  # Bytes are split at \n, \r, and \r\n.
            self._write(b"".join(self._mark + line for line in lines))
            self._rest.clear()
            self._kept = 0
        if len(data) > end:
            self._rest.append(data[end:])
            self._kept += len(data) - end
            if self._kept >= _LINE_MAX:
                self.end()

    def end(self) -> None:
        if self._rest:
            self._write(b"".join([self._mark, *self._rest, b"\n"]))
            self._rest.clear()
            self._kept = 0

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # The output may have lost its reader.
            self._shown.write(data)
            self._shown.flush()


def _watch(
    pes: list[_PE],
    starting: Iterator[_PE],
    lines: selectors.BaseSelector,
    given: StandardInput,
    word: LastWord,
    launchers: Store,
    asked_to_end: list[int],
) -> int:
    """Start PEs in batches, and pass on their output until all have ended. End them if one fails, and on a signal.

    Args:
        pes: list to fill with the PEs.
        starting: iterator that starts one PE after another.
        lines: selector of the PEs' pipes.
        given: the standard input of the PEs.
        word: the right to print why the job ends.
        launchers: connection to the other nodes' launchers.
        asked_to_end: list to which the handler adds signals.
    """
    status: int | None = None
    reason = ""
    deadline, signals = float("inf"), iter((signal.SIGTERM, signal.SIGKILL))
    running: list[_PE] = []
    more = listening = True
    news: News | None = None  # Why the job ends, if it began on another node.
    while more or running or _outputs(lines):
        if more:
            batch = len(pes)
            for pe in itertools.islice(starting, 0 if reason or asked_to_end else _BATCH):
                pes.append(pe)
                running.append(pe)
            more = len(pes) > batch
        else:
            given.turn()
        _pass_on(lines, 0 if more else 0.05)
        for pe, code in [(pe, code) for pe in running if (code := pe.ended()) is not None]:
            running.remove(pe)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            own = 128 - code if code < 0 else code
            if status is not None:
                continue
            first = launchers.say_fate(pe.rank, pe.process.pid, how, own)
            if own:
                word.release()  # Because its status is known, no status of another PE can replace it.
                status = first if news is None else news.status
            if own and not reason:
                deadline = time.monotonic() + _GRACE_S
                time.sleep(0.2)  # The PE's own watcher, which prints the same, must have time to print first.
                reason = f"{pe.name} {how}" + (": the job cannot continue" if code < 0 else ", ending the job")
                word.say(functools.partial(say, reason))
        if listening and (heard := launchers.news()) is not None:
            listening = bool(heard.why)
            if heard.why and not reason:
                news = heard
                status = news.status if more else status  # Some PEs will not be started.
                deadline = time.monotonic() + _NEWS_GRACE_S
                time.sleep(0.2)
                reason = f"{news.why}: the job cannot continue"
                word.say(functools.partial(say, reason))
                word.release()
        if asked_to_end:
            received = asked_to_end.pop()
            status, deadline = status if status is not None else 128 + received, min(deadline, time.monotonic() + _GRACE_S)
            _signal(running, received)
        if running and time.monotonic() > deadline:
            _signal(running, next(signals, signal.SIGKILL))
            deadline = time.monotonic() + _TERM_S
        if not running:
            if status:
                _signal(pes, signal.SIGKILL)  # To end children that PEs left.
            if time.monotonic() > deadline:  # A child of a PE still has its pipe.
                break
            deadline = min(deadline, time.monotonic() + _TERM_S)
    if reason and not word.said(0):  # The process that had to print was killed before it did.
        say(reason)
    return status or 0


def _outputs(lines: selectors.BaseSelector) -> bool:
    """Whether a PE or a child of it may still print."""
    return any(isinstance(key.data, _Lines) for key in lines.get_map().values())


def _pass_on(lines: selectors.BaseSelector, seconds: float) -> None:
    """Pass on what PEs have printed, or print within a number of seconds, and some of their input."""
    for key, _ in lines.select(seconds):
        if not isinstance(key.data, _Lines):
            key.data()
            continue
        data = os.read(key.fd, 1 << 16)
        if data:
            key.data.add(data)
        else:
            key.data.end()
            lines.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]


def _signal(pes: list[_PE], number: int) -> None:
    for pe in pes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pe.process.pid, number)


def _kill(pes: list[_PE]) -> None:
    """Kill the remaining PEs, for whatever reason this command ends."""
    for pe in pes:
        if pe.ended() is None:
            _signal([pe], signal.SIGKILL)
        pe.process.wait()


if __name__ == "__main__":
    sys.exit(main())
