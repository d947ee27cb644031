"""A guest kept on disk: booted, Python started and its libraries imported, which takes half a minute of an emulated processor.

QEMU writes a guest that has no 9p folder mounted. So this one is started from files that are in its initramfs, those that Python opens to
import libraries (files.py), and mounts the machine's own root when it goes on (pause.sh, live.sh): what is tested is read from there, by
every run anew. What was read before is part of the name under which a guest is kept; where a file is another, another guest is made.
"""

import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rxe import guest
from rxe.initramfs import HERE, Entry, initramfs
from rxe.kernel import Kernel
from rxe.monitor import Monitor, MonitorError

__all__ = ["NotKept", "entries_of", "keep"]

#: How long a guest may take until it can be kept, in seconds: 20 to 40 where nothing else runs.
MAKING_S = 300

#: How many are kept, as many virtual environments want one each.
KEPT = 2


class NotKept(Exception):
    """A guest could not be kept, or what is kept does not start; the text says why."""


def keep(kernel: Kernel, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the file from which the guest goes on, made if it is not there or was made from other files.

    Raises:
        NotKept: QEMU cannot write it, or Python does not start in it.
    """
    more = [*entries_of(_files()), Entry("server", _server().encode())]
    state = cache / f"guest-{_name(kernel, more)}"
    if not state.exists():
        say("a guest is made and kept on disk, for this run and later ones")
        with tempfile.TemporaryDirectory(prefix="guest-being-made-", dir=cache) as folder:
            _make(kernel, more, Path(folder))
            Path(folder, "state").rename(state)
    os.utime(state)
    for folder in cache.glob("guest-being-made-*"):
        if time.time() - folder.stat().st_mtime > 2 * MAKING_S:  # its maker was killed
            shutil.rmtree(folder, ignore_errors=True)
    for old in sorted(cache.glob("guest-????????????????"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return state


def _files() -> list[str]:
    """Return what files.py prints."""
    environment = {**_environment(), "PATH": os.environ.get("PATH", os.defpath)}
    done = subprocess.run([sys.executable, "-m", "rxe.files"], cwd="/", env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    """What of the environment Python or Numba read when they start."""
    of_start = {
        name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "NUMBA_", "LC_")) or name in ("HOME", "LANG")
    }
    return {**of_start, **guest.ANY_PROCESSOR, "PYTHONPATH": str(HERE.parent)}


def _server() -> str:
    """The script that starts Python in the guest's first files."""
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(_environment().items())]
    return "".join(exports) + f"exec {shlex.quote(sys.executable)} -m rxe.forks --kept /bin/sh /run/guest/command\n"


def entries_of(files: list[str]) -> Iterator[Entry]:
    """Yield files, with the folders and symbolic links on the way to them, each once and folders before what is in them."""
    seen = {Path("/")}

    def reach(path: Path, links: int = 40) -> Iterator[Entry]:
        for above in reversed(path.parents):
            if above.is_symlink():
                yield from one(above, links)
                yield from reach(above.resolve() / path.relative_to(above), links - 1)
                return
            yield from one(above, links)
        yield from one(path, links)

    def one(path: Path, links: int) -> Iterator[Entry]:
        if path in seen or links == 0:
            return
        seen.add(path)
        about = path.lstat()
        name, mtime = str(path).removeprefix("/"), int(about.st_mtime)
        if stat.S_ISLNK(about.st_mode):
            target = os.readlink(path)
            yield Entry(name, link=target, mtime=mtime)
            yield from reach(Path(os.path.normpath(path.parent / target)), links - 1)
        elif stat.S_ISDIR(about.st_mode):
            yield Entry(name, mtime=mtime)
        else:
            yield Entry(name, path, executable=bool(about.st_mode & stat.S_IXUSR), mtime=mtime)

    for file in files:
        yield from reach(Path(file))


def _name(kernel: Kernel, more: list[Entry]) -> str:
    """Return what changes with all that the guest is made from: files (by size and time stamp), kernel, QEMU; and with each boot here."""
    made_from: list[object] = [kernel.folder.name, guest.qemu_command(*[Path()] * 4, clock="")]
    made_from.append(subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout)
    with contextlib.suppress(OSError):
        made_from.append(Path("/proc/sys/kernel/random/boot_id").read_text() + platform.processor())
    scripts = [Entry(name, HERE / name) for name in ("init", "live.sh", "pause.sh")]
    for entry in (*scripts, *more):
        if isinstance(entry.content, Path):
            about = entry.content.stat()
            made_from.append((entry.name, about.st_size, about.st_mtime_ns))
        elif entry.content is not None or entry.link is not None:  # a folder's time stamp changes with files that nobody reads
            made_from.append((entry.name, entry.read().decode()))
    return hashlib.sha256(json.dumps(made_from, default=str).encode()).hexdigest()[:16]


def _make(kernel: Kernel, more: list[Entry], folder: Path) -> None:
    """Boot a guest, and write it to a file of the folder when it pauses."""
    shared, initrd, console = folder / "shared", folder / "initramfs", folder / "console"
    shared.mkdir()
    with initrd.open("wb") as file:
        file.writelines(initramfs(kernel, more=more))
    with Monitor() as monitor:
        line = [*guest.qemu_command(kernel.vmlinux, initrd, shared, console), *monitor.options]
        with guest.running(line, cwd=folder, stdout=subprocess.PIPE, pass_fds=monitor.pass_fds) as qemu:
            too_long = threading.Timer(MAKING_S, qemu.kill)
            too_long.start()
            said = b""
            while not said.endswith(b"ready\n"):
                if not (part := qemu.stdout.readline()):
                    raise NotKept(f"Python did not start in it: {said.decode(errors='replace').strip() or guest.end_of(console)}")
                said += part
            too_long.cancel()
            try:
                monitor.started()
                monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
                monitor.ask("migrate", uri="exec:cat > state")
                monitor.wait("query-migrate", "completed")
            except MonitorError as error:
                raise NotKept(f"QEMU does not write it: {error}") from None
