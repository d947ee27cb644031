"""What the guest is made from and which Debian package brings it; installed where apt-get and root are there, else named in one line."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

__all__ = ["NEEDED", "VERBS", "Missing", "apt", "install_missing", "is_static", "link_pyverbs", "missing_packages"]

#: Where Debian keeps Python packages: binary modules there are of one version of CPython, named in the file names.
DEBIAN_PYTHON = Path("/usr/lib/python3/dist-packages")


class Missing(Exception):
    """Something without which there is no guest; the text is one line that names it."""


def is_static(program: Path) -> bool:
    """Whether an ELF file of 64 bits needs no dynamic loader, i.e. has no program header of type PT_INTERP (elf(5))."""
    try:
        image = program.read_bytes()
    except OSError:
        return False
    e_phoff = int.from_bytes(image[32:40], "little")
    e_phentsize, e_phnum = (int.from_bytes(image[at : at + 2], "little") for at in (54, 56))
    pt_interp = (3).to_bytes(4, "little")
    return image[:5] == b"\x7fELF\x02" and all(image[e_phoff + i * e_phentsize :][:4] != pt_interp for i in range(e_phnum))


def _file(pattern: str) -> Callable[[], bool]:
    return lambda: any(Path("/").glob(pattern))


def _program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is not None


#: What tests of verbs need: Debian package -> whether what is wanted of it is there.
VERBS: dict[str, Callable[[], bool]] = {
    "python3-pyverbs": _file("usr/lib/python3/dist-packages/pyverbs/__init__.py"),
    "ibverbs-providers": _file("etc/libibverbs.d/rxe.driver"),
}

#: What the guest needs.
NEEDED: dict[str, Callable[[], bool]] = {
    **VERBS,
    "qemu-system-x86": _program("qemu-system-x86_64"),
    "seabios": _file("usr/share/*/bios-256k.bin"),
    "busybox-static": lambda: is_static(Path("/bin/busybox")),
    "iproute2": lambda: _program("ip")() and _program("rdma")(),
}

#: Likewise, for tests outside the guest: rdma-core's own, and the headers that numbers are compared with. Without them they are skipped.
USEFUL: dict[str, Callable[[], bool]] = {
    "rdma-core": _file("usr/share/doc/rdma-core/tests/run_tests.py"),
    "libibverbs-dev": _file("usr/include/infiniband/mlx5dv.h"),
}


def missing_packages(wanted: dict[str, Callable[[], bool]] | None = None) -> list[str]:
    """Return the packages that are not there, of NEEDED or others."""
    return [package for package, is_there in (NEEDED if wanted is None else wanted).items() if not is_there()]


def apt(*arguments: str, cwd: Path | None = None) -> str:
    """Run apt-get, or another program of apt named as ``apt-cache ...``, and return its output.

    Raises:
        Missing: there is no apt here, or it failed; with the last line of what it said.
    """
    program, *rest = arguments if arguments[0].startswith("apt-") else ("apt-get", *arguments)
    if shutil.which(program) is None:
        raise Missing(f"{program} is missing: packages can be had on Debian only")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    # The sandbox user _apt cannot write to folders of root.
    command = [program, "-qq", "-o", "APT::Sandbox::User=root", *rest]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise Missing(f"{' '.join((program, *rest))}: {last}")
    return done.stdout


def install_missing(say: Callable[[str], None], needed: dict[str, Callable[[], bool]] | None = None) -> None:
    """Install what is missing of NEEDED (or of other packages), and of USEFUL if it can be had.

    Raises:
        Missing: a package that is needed is missing and apt-get or root is, too, or apt-get failed.
    """
    packages = missing_packages(needed)
    if not packages and (not missing_packages(USEFUL) or os.geteuid() != 0 or shutil.which("apt-get") is None):
        return
    packages += missing_packages(USEFUL)
    install = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise Missing(f"no apt-get here to install {' '.join(packages)} with")
    if os.geteuid() != 0:
        raise Missing(f"{', '.join(packages)} not installed, and only root can; as root: {install}")
    say(install)
    apt("update")
    apt("install", "-y", "--no-install-recommends", *packages)
    if still := missing_packages(needed):
        raise Missing(f"{', '.join(still)}: installed, but what was wanted of it is not there")


def link_pyverbs(packages: Path = DEBIAN_PYTHON, site: Path | None = None) -> None:
    """Make Debian's pyverbs importable in this virtual environment, by one link, if it has no pyverbs yet.

    Raises:
        Missing: Debian's is built for another CPython, or this is no virtual environment.
    """
    if importlib.util.find_spec("pyverbs") is not None:
        return
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    if not (packages / "pyverbs" / f"device{suffix}").exists():
        built_for = sorted({path.name.split(".")[1] for path in (packages / "pyverbs").glob("device.*.so")})
        raise Missing(f"python3-pyverbs is built for {', '.join(built_for) or 'no CPython'}, {sys.executable} loads {suffix}")
    if site is None and sys.prefix == sys.base_prefix:
        raise Missing(f"{sys.executable} has no pyverbs and is in no virtual environment, into which Debian's could be linked")
    link = (site or Path(sysconfig.get_path("purelib"))) / "pyverbs"
    link.unlink(missing_ok=True)  # a link to what is no longer there
    link.symlink_to(packages / "pyverbs")
