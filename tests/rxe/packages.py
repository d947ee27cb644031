"""The Debian packages of the guest, installed if there are root and apt-get, and Debian's kernel, which is only unpacked."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["GUEST", "VERBS", "Missing", "apt", "cache_folder", "install", "kernel", "link_pyverbs", "missing"]

#: Packages for tests of verbs, for the guest, and for tests outside it: rdma-core's own tests, and headers.
VERBS = ("python3-pyverbs", "ibverbs-providers")
GUEST = (*VERBS, "qemu-system-x86", "seabios", "busybox-static", "iproute2")
USEFUL = ("rdma-core", "libibverbs-dev")

#: The kernel with RDMA_RXE=m and 9P_FS=m; the -cloud- one has neither.
KERNEL = "linux-image-amd64"

#: Modules that the guest loads, with their dependencies: 9p for the root, Soft-RoCE and crc32 for its first device, the modules of
#: libibverbs and librdmacm, the interface whose link is taken down, and those of two machines and of a bad network between them.
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "dummy",
    "veth",
    "sch_netem",
)

#: Debian's folder of Python packages, with binary modules for one version of CPython.
DEBIAN_PYTHON = Path("/usr/lib/python3/dist-packages")


class Missing(Exception):
    """Something that the guest needs is missing; the text is one line that names it."""


def missing(packages: Sequence[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        return list(packages)
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [package for package in packages if f"{package} installed" not in found]


def apt(program: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run a program of apt, and return its output.

    Raises:
        Missing: there is no apt, or it failed; with the last line of its output.
    """
    if shutil.which(program) is None:
        raise Missing(f"{program} is missing: packages are available on Debian only")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    # The sandbox user _apt cannot write to folders of root.
    command = [program, "-qq", "-o", "APT::Sandbox::User=root", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise Missing(f"{program} {' '.join(arguments)}: {last}")
    return done.stdout


def install(packages: Sequence[str]) -> None:
    """Install missing packages, and those of USEFUL that are available.

    Raises:
        Missing: a package is missing, and root or apt-get is too, or apt-get failed.
    """
    needed, root = missing(packages), os.geteuid() == 0
    wanted = [*needed, *(missing(USEFUL) if root else ())]
    if needed and not root:
        raise Missing(f"as root: apt-get install --no-install-recommends {' '.join(needed)}")
    if wanted:
        print(f"rxe: apt-get install --no-install-recommends {' '.join(wanted)}", file=sys.stderr, flush=True)
        try:
            apt("apt-get", "update")
            apt("apt-get", "install", "-y", "--no-install-recommends", *wanted)
        except Missing:
            if needed:
                raise


def link_pyverbs(packages: Path = DEBIAN_PYTHON, site: Path | None = None) -> None:
    """Make Debian's pyverbs importable in this virtual environment by a link, if it has no pyverbs.

    Raises:
        Missing: Debian's pyverbs is built for another CPython, or this is no virtual environment.
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
    link.unlink(missing_ok=True)  # a dangling link
    link.symlink_to(packages / "pyverbs")


def cache_folder() -> Path:
    """Return the folder of the kernel: PGAS_RXE_DIR, or pgas-rxe in the user's cache."""
    if folder := os.environ.get("PGAS_RXE_DIR"):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgas-rxe"


def kernel() -> Path:
    """Return a folder with Debian's kernel, vmlinuz, and MODULES in modules/, named in load order; downloaded once.

    Raises:
        Missing: apt has no such package, or it cannot be downloaded.
    """
    kept = cache_folder() / f"vmlinuz-{'-'.join(MODULES)}"
    if kept.is_dir():
        return kept
    depends = apt("apt-cache", "depends", KERNEL)
    if (found := re.search(r"Depends: (linux-image-\S+)", depends)) is None:
        raise Missing(f"apt knows no {KERNEL}, Debian's kernel with Soft-RoCE")
    print(f"rxe: apt-get download {found[1]}", file=sys.stderr, flush=True)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=cache_folder()) as scratch:
        tree, folder = Path(scratch, "tree"), Path(scratch, "kept")
        apt("apt-get", "download", found[1], cwd=Path(scratch))
        subprocess.run(["dpkg", "-x", next(Path(scratch).glob("*.deb")), tree], check=True)
        (folder / "modules").mkdir(parents=True)
        for number, module in enumerate(load_order(tree)):
            shutil.copy(module, folder / "modules" / f"{number:02}-{module.name}")
        shutil.copy(next((tree / "boot").glob("vmlinuz-*")), folder / "vmlinuz")
        folder.rename(kept)
    return kept


def load_order(tree: Path) -> list[Path]:
    """Return the files of MODULES under a folder, dependencies first. A module without a file is built in."""
    files = {path.stem.replace("-", "_"): path for path in tree.rglob("*.ko")}
    order: dict[str, Path] = {}

    def load(name: str) -> None:
        if name in files and name not in order:
            depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
            for needed in filter(None, (depends[1] if depends else b"").decode().split(",")):
                load(needed.replace("-", "_"))
            order[name] = files[name]

    for name in MODULES:
        load(name)
    return list(order.values())
