"""Boots the guest, runs one command in it, and returns its exit status.

The command's output comes through the second serial port, the kernel's through the first, and the exit status through a shared folder.
"""

import contextlib
import ctypes
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ANY_PROCESSOR", "DIED", "TIMED_OUT", "boot", "command_script"]

#: Exit statuses that are not the command's, as those of timeout(1) and env(1).
TIMED_OUT = 124
DIED = 125

HERE = Path(__file__).parent

#: Variables of the caller's terminal, session or MPI job, which are not passed to the guest.
NOT_PASSED_ON = re.compile(r"TERM|DISPLAY|TMPDIR|LS_COLORS|(PGAS_RXE|XDG|SSH|DBUS|PMI|PMIX|OMPI_COMM|HYDRA|MAKE)\w*|MFLAGS|_")

#: Keep MPI off the tested devices, whose link goes down: MPICH's UCX, Open MPI's transfer layers.
MPI_OFF_RDMA = {"UCX_TLS": "self,sm", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

#: Numba compiles for this processor, so the guest can use the machine's cached code.
ANY_PROCESSOR = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def command_script(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> str:
    """Return the shell script that runs the command in the caller's folder, with the caller's environment."""
    passed = {name: value for name, value in environment.items() if name.isidentifier() and not NOT_PASSED_ON.fullmatch(name)}
    passed = {**MPI_OFF_RDMA, **ANY_PROCESSOR, **passed, "TERM": "dumb"}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(passed.items())]
    return "\n".join([*exports, f"cd {shlex.quote(cwd)} || exit {DIED}", f"exec {shlex.join(command)}", ""])


def boot(kernel: Path, command: Sequence[str], timeout_s: float) -> int:
    """Run a command in a guest; its output, both streams merged, goes to standard output at once.

    Args:
        kernel: folder of packages.kernel().
        command: program and arguments.
        timeout_s: limit in seconds for boot and command together.

    Returns:
        The command's exit status; TIMED_OUT after timeout_s; DIED if the guest died, with the end of its console on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="pgas-rxe-") as folder:
        shared, console = Path(folder, "shared"), Path(folder, "console")
        shared.mkdir()
        shutil.copy(HERE / "devices", shared)
        (shared / "command").write_text(command_script(command, os.environ, os.getcwd()))
        line = _qemu(kernel, _initramfs(kernel, Path(folder)), shared, console)
        sys.stdout.flush()
        # A new session, so Ctrl-C reaches only this process; setpriv: it dies with this process.
        qemu = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *line], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)
        try:
            qemu.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"rxe: the command did not end within {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        finally:
            qemu.kill()
            qemu.wait()
        with contextlib.suppress(OSError, ValueError):
            return int((shared / "status").read_text())
        said = console.read_text(errors="replace").splitlines()[-15:] if console.exists() else ["(nothing)"]
        end = "\n".join(re.sub(r"\x1b\S*|[^\x20-\x7e]", "", line) for line in said)
        print(f"rxe: the guest died (qemu: {qemu.returncode}); the end of its console:\n{end}", file=sys.stderr)
        return DIED


def _initramfs(kernel: Path, folder: Path) -> Path:
    root, found = folder / "root", folder / "initramfs"
    for name in ("busybox", "dev", "host", "live", "memory", "proc", "sys"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "busybox")
    shutil.copytree(kernel / "modules", root / "modules")
    shutil.copy(HERE / "init", root)
    (root / "init").chmod(0o755)
    with found.open("wb") as file:
        subprocess.run(["sh", "-c", "find . | busybox cpio -o -H newc"], cwd=root, stdout=file, stderr=subprocess.DEVNULL, check=True)
    return found


def _qemu(kernel: Path, initrd: Path, shared: Path, console: Path) -> list[str]:
    """Return QEMU's command line. Commas in option values are doubled."""
    share, log = (str(path).replace(",", ",,") for path in (shared, console))
    return [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max,la57=off",
        "-smp", "2", "-m", "3072", "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none",
        "-chardev", f"file,id=console,path={log}", "-serial", "chardev:console",
        "-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output",
        "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
        "-fsdev", f"local,id=guest,path={share},security_model=none",
        "-device", "virtio-9p-pci,fsdev=guest,mount_tag=guest",
        "-kernel", str(kernel / "vmlinuz"), "-initrd", str(initrd),
        "-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on "
        f"tsc=reliable tsc_early_khz={_tsc_khz()}",
    ]  # fmt: skip


def _tsc_khz() -> int:
    """Measure the frequency of this machine's time stamp counter, which QEMU passes through.

    On a busy machine the guest's kernel measures it badly (once 5 times too fast). It also decides that the counters of its processors
    differ, and uses the HPET as its clock, which takes 26 us to read instead of 4.
    """
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
        place = ctypes.c_char.from_buffer(page)
        rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))

        def look() -> tuple[int, int]:
            """Return nanoseconds and the counter at one moment: the shortest of twenty tries."""
            tries = []
            for _ in range(20):
                before, counter, after = time.monotonic_ns(), rdtsc(), time.monotonic_ns()
                tries.append((after - before, (before + after) // 2, counter))
            return min(tries)[1:]

        first, _, last = look(), time.sleep(0.2), look()
        del place  # the page cannot be unmapped while it exists
    return round((last[1] - first[1]) * 1_000_000 / (last[0] - first[0]))
