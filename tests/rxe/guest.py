"""Boots the guest, runs one command in it, and ends with what that ended with.

QEMU emulates the processor (TCG): where machines are themselves guests, KVM is missing or too slow to be of use, and a guest that
boots in seconds does not need it. The command's output comes over the second serial port, the kernel's over the first; its exit
status over a shared folder.
"""

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rxe.clock import clock_options
from rxe.initramfs import HERE, archive, first_files
from rxe.kernel import Kernel
from rxe.monitor import Monitor

__all__ = ["ANY_PROCESSOR", "DIED", "TIMED_OUT", "boot", "command_script", "end_of", "ended_by_signals", "qemu_command", "running"]

#: Exit statuses that are not the command's, as of timeout(1) and of env(1).
TIMED_OUT = 124
DIED = 125

MEMORY_MIB = 3072
CPUS = 2

#: Of the caller's environment, what belongs to its terminal, session or MPI job.
NOT_PASSED_ON = re.compile(r"TERM|DISPLAY|TMPDIR|LS_COLORS|(PGAS_RXE|XDG|SSH|DBUS|PMI|PMIX|OMPI_COMM|HYDRA|MAKE)\w*|MFLAGS|_")

#: MPI is to keep off the devices that are tested, whose link goes down: MPICH's UCX, Open MPI's transfer layers.
MPI_OFF_RDMA = {"UCX_TLS": "self,sm", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

#: Numba compiles for this processor, so that code which the machine has compiled and kept on disk fits the guest's, too.
ANY_PROCESSOR = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}

PR_SET_PDEATHSIG = 1


def command_script(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> str:
    """Return the shell script that runs the command in the caller's folder, with the caller's environment."""
    passed = {name: value for name, value in environment.items() if name.isidentifier() and not NOT_PASSED_ON.fullmatch(name)}
    passed = {**MPI_OFF_RDMA, **ANY_PROCESSOR, **passed, "TERM": "dumb"}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(passed.items())]
    exports.append('PATH="$FORKS_PATH$PATH"')  # the python of rxe.forks, where the script is what it runs
    return "\n".join([*exports, f"cd {shlex.quote(cwd)} || exit {DIED}", f"exec {shlex.join(command)}", ""])


def qemu_command(kernel: Path, initrd: Path, shared: Path, console: Path, clock: str | None = None) -> list[str]:
    """Return QEMU's command line; the first serial port is written to console, the second is QEMU's own input and output."""
    clock = clock_options() if clock is None else clock
    return [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max,la57=off",
        "-smp", str(CPUS), "-m", str(MEMORY_MIB), "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none",
        "-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console",
        "-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output",
        "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
        "-fsdev", f"local,id=guest,path={_escaped(shared)},security_model=none",
        "-device", "virtio-9p-pci,fsdev=guest,mount_tag=guest",
        "-kernel", str(kernel), "-initrd", str(initrd),
        "-append", f"console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on {clock}",
    ]  # fmt: skip


def _escaped(path: Path) -> str:
    """A path in one of QEMU's lists of options, where a comma is written twice."""
    return str(path).replace(",", ",,")


def boot(kernel: Kernel, command: Sequence[str], *, timeout_s: float, kept: Path | None = None) -> int:
    """Run a command in a guest; its output, both streams together, goes to standard output as it comes.

    Args:
        kept: the guest that goes on from there (kept.py), under rxe.forks; otherwise one is booted.

    Returns:
        The command's exit status; TIMED_OUT after timeout_s; DIED if the guest ended without one, with its console's end on standard error.

    Raises:
        MonitorError: QEMU does not read what is kept; nothing was run.
    """
    with tempfile.TemporaryDirectory(prefix="pgas-rxe-") as folder:
        shared, initrd, console = Path(folder, "shared"), Path(folder, "initramfs"), Path(folder, "console")
        shared.mkdir()
        shutil.copy(HERE / "devices", shared)
        (shared / "command").write_text(command_script(command, os.environ, os.getcwd()))
        with initrd.open("wb") as file:
            file.writelines(archive(first_files(kernel)))
        line = qemu_command(kernel.vmlinux, initrd, shared, console)
        sys.stdout.flush()
        try:
            with going_on(line, kept, shared) if kept is not None else running(line) as qemu:
                qemu.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"rxe: the command did not end within {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        with contextlib.suppress(OSError, ValueError):
            return int((shared / "status").read_text())
        print(f"rxe: the guest died (qemu: {qemu.returncode}); the end of its console:\n{end_of(console)}", file=sys.stderr)
        return DIED


@contextlib.contextmanager
def running(line: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A QEMU, killed at the end, whatever ends it."""
    qemu = subprocess.Popen(line, preexec_fn=_alone, **{"stdin": subprocess.DEVNULL, "cwd": "/", **options})
    try:
        yield qemu
    finally:
        qemu.kill()
        qemu.wait()
        for pipe in filter(None, (qemu.stdin, qemu.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def going_on(line: list[str], kept: Path, shared: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A QEMU with the guest that waits in pause.sh, told to go on as soon as it was read."""
    with Monitor() as monitor:
        line = [*line, *monitor.options, "-incoming", f"exec:cat {shlex.quote(str(kept))}"]
        with running(line, stdin=subprocess.PIPE, pass_fds=monitor.pass_fds) as qemu:
            monitor.started()
            monitor.wait("query-status", "running")
            (shared / "date").write_text(f"{time.time():.0f}")  # where it was kept, time stood still
            assert qemu.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it died, and left no status
                qemu.stdin.write(b"go\n")
                qemu.stdin.flush()
            yield qemu


def _alone() -> None:
    """In the child: out of the terminal's reach, whose Ctrl-C is for guest.py; and it dies with guest.py."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the guest as Ctrl-C does: by an exception, so that everything is cleared away."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_of(console: Path, nlines: int = 15) -> str:
    try:
        text = console.read_text(errors="replace")
    except OSError:
        return "(nothing)"
    return "\n".join(re.sub(r"\x1b\S*|[^\x20-\x7e]", "", line) for line in text.splitlines()[-nlines:])
