"""A guest kept on disk: booted, Python started and its libraries imported, which takes half a minute of an emulated processor.

QEMU writes a guest that has no 9p folder mounted. So this one is started from files that are in its initramfs, those that Python opens to
import libraries (files.py), and mounts the machine's own root when it goes on (pause.sh, live.sh): what is tested is read from there, by
every run anew. What was read before is part of the name under which a guest is kept; where a file is another, another guest is made. Runs
that go on from one guest begin with the same seeds of str's hash and of NumPy's generator.
"""

import contextlib
import hashlib
import json
import os
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
from rxe.initramfs import HERE, Entry, archive, first_files
from rxe.kernel import Kernel
from rxe.monitor import Monitor, MonitorError

__all__ = ["NotKept", "entries_of", "keep"]

#: How long a guest may take until it can be kept, in seconds: 20 to 40 where nothing else runs.
MAKING_S = 300

#: How long what QEMU has written may take to be on disk.
WRITING_S = 60

#: How many are kept: each checkout and each virtual environment wants its own.
KEPT = 3


class NotKept(Exception):
    """A guest could not be kept; the text says why."""


def keep(kernel: Kernel, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the file from which the guest goes on, made if it is not there or was made from other files.

    Raises:
        NotKept: QEMU cannot write it, or Python does not start in it.
    """
    try:
        entries = [*first_files(kernel), *entries_of(_files()), Entry("server", _server().encode())]
        state = cache / f"guest-{_name(entries, kernel)}"
        if not state.exists():
            say("a guest is made and kept on disk, for this run and later ones")
            with tempfile.TemporaryDirectory(prefix="guest-being-made-", dir=cache) as folder:
                _make(kernel, entries, Path(folder))
                Path(folder, "state").rename(state)
        os.utime(state)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotKept(str(error)) from error
    with contextlib.suppress(OSError):  # of another process or user
        _prune(cache)
    return state


def _prune(cache: Path) -> None:
    """Remove what a killed process left, and guests that were not used lately."""
    for folder in cache.glob("guest-being-made-*"):
        if time.time() - folder.stat().st_mtime > 2 * MAKING_S:
            shutil.rmtree(folder, ignore_errors=True)
    for old in sorted(cache.glob("guest-????????????????"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)


def _files() -> list[str]:
    """Return what files.py prints."""
    environment = {**_environment(), "PATH": os.environ.get("PATH", os.defpath)}
    done = subprocess.run([sys.executable, "-m", "rxe.files"], cwd="/", env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    """What of the environment the loader, Python or Numba read when they start; pgas is found where the caller's Python would find it."""
    names = ("PYTHON", "NUMBA_", "LC_", "LANG", "HOME", "LD_LIBRARY_PATH")
    of_start = {name: value for name, value in os.environ.items() if name.startswith(names)}
    paths = [os.getcwd(), *map(os.path.abspath, filter(None, of_start.get("PYTHONPATH", "").split(os.pathsep))), str(HERE.parent)]
    return {**of_start, **guest.ANY_PROCESSOR, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


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


def _name(entries: list[Entry], kernel: Kernel) -> str:
    """Return what changes with all that the guest is made from, files by size and time stamp, with QEMU and each boot of this machine."""
    made_from: list[object] = [guest.qemu_command(*[Path()] * 4, clock="")]
    made_from.append(subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout)
    with contextlib.suppress(OSError):  # the frequency of its counter may be another after it
        made_from.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    for entry in (Entry("vmlinux", kernel.vmlinux), *entries):
        if isinstance(entry.content, Path):
            about = entry.content.stat()
            made_from.append((entry.name, about.st_size, about.st_mtime_ns))
        elif entry.content is not None or entry.link is not None:  # a folder's time stamp changes with files that nobody reads
            made_from.append((entry.name, entry.read().decode()))
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]


def _make(kernel: Kernel, entries: list[Entry], folder: Path) -> None:
    """Boot a guest, and write it to a file of the folder when it pauses."""
    shared, initrd, console = folder / "shared", folder / "initramfs", folder / "console"
    shared.mkdir()
    with initrd.open("wb") as file:
        file.writelines(archive(entries))
    with Monitor() as monitor:
        line = [*guest.qemu_command(kernel.vmlinux, initrd, shared, console), *monitor.options]
        with guest.running(line, cwd=folder, stdout=subprocess.PIPE, pass_fds=monitor.pass_fds) as qemu:
            _await_pause(qemu, console)
            try:
                monitor.started()
                monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
                monitor.ask("migrate", uri="exec:cat > part && mv part state")
                monitor.wait("query-migrate", "completed")
            except MonitorError as error:
                raise NotKept(f"QEMU does not write it: {error}") from None
            deadline = time.monotonic() + WRITING_S  # QEMU is done when the pipe has its last bytes
            while not (folder / "state").exists():
                if time.monotonic() > deadline:
                    raise NotKept(f"QEMU has written it, but it was not on disk within {WRITING_S} s")
                time.sleep(0.02)


def _await_pause(qemu: subprocess.Popen[bytes], console: Path) -> None:
    """Return when the guest says that it may be kept."""
    said, began = b"", time.monotonic()
    too_long = threading.Timer(MAKING_S, qemu.kill)
    too_long.daemon = True
    too_long.start()
    try:
        while not said.endswith(b"ready\n"):
            if not (part := qemu.stdout.readline()):
                within = f" within {MAKING_S} s" if time.monotonic() - began >= MAKING_S else ""
                raise NotKept(f"Python did not start in it{within}: {said.decode(errors='replace').strip() or guest.end_of(console)}")
            said += part
    finally:
        too_long.cancel()
