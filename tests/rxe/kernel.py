"""A Debian kernel, downloaded and taken apart, never installed: the ELF vmlinux that QEMU starts at once, and the modules in the order
in which they load."""

import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rxe.packages import Missing, apt

__all__ = ["MODULES", "Kernel", "cache_folder", "load_order", "unpack_vmlinux"]

#: The modules asked for; what they depend on is loaded before them.
MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay",  # the way to the root
    "crc32_generic", "rdma_rxe",  # Soft-RoCE, which wants crc32 at its first device
    "ib_uverbs", "rdma_ucm",  # for libibverbs and librdmacm
    "dummy",  # the interface whose link can be taken down
)  # fmt: skip

#: The kernel with RDMA_RXE=m and 9P_FS=m; the -cloud- one has neither.
META_PACKAGE = "linux-image-amd64"


def cache_folder() -> Path:
    """Return where kernels are kept: PGAS_RXE_DIR, else pgas-rxe in the user's cache."""
    if folder := os.environ.get("PGAS_RXE_DIR"):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgas-rxe"


def unpack_vmlinux(bzimage: bytes) -> bytes:
    """Return the ELF file that a bzImage unpacks, which saves the guest seconds of unpacking it itself.

    The boot protocol (Documentation/arch/x86/boot.rst) gives setup_sects at 0x1f1, payload_offset and payload_length at 0x248.

    Raises:
        ValueError: no bzImage, or its payload is not compressed by xz, as Debian's is.
    """
    if bzimage[0x202:0x206] != b"HdrS":
        raise ValueError("no bzImage: the boot header has no signature HdrS")
    payload_offset, payload_length = (int.from_bytes(bzimage[at : at + 4], "little") for at in (0x248, 0x24C))
    start = ((bzimage[0x1F1] or 4) + 1) * 512 + payload_offset
    payload = bzimage[start : start + payload_length]
    if payload[:6] != b"\xfd7zXZ\0":
        raise ValueError(f"the payload of the bzImage is not compressed by xz: {payload[:6].hex()}")
    vmlinux = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)  # the size of the ELF file follows the stream
    if vmlinux[:4] != b"\x7fELF":
        raise ValueError(f"the payload of the bzImage is no ELF file: {vmlinux[:4].hex()}")
    return vmlinux


def load_order(tree: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of modules and of all that they depend on, each after what it needs. Built-in ones have no file.

    Raises:
        ValueError: a module is neither in the tree nor built in.
    """

    def name_of(path: str) -> str:
        return Path(path).name.removesuffix(".ko").replace("-", "_")

    files = {name_of(str(path)): path for path in sorted(tree.rglob("*.ko"))}
    built_in = {name_of(line) for path in tree.rglob("modules.builtin") for line in path.read_text().split()}
    order: dict[str, Path] = {}

    def load(name: str) -> None:
        if name in order or name in built_in:
            return
        if name not in files:
            raise ValueError(f"the kernel has no module {name}")
        depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
        for needed in filter(None, (depends[1] if depends else b"").decode().split(",")):
            load(needed.replace("-", "_"))
        order[name] = files[name]

    for name in names:
        load(name)
    return list(order.values())


@dataclass(frozen=True)
class Kernel:
    """What is kept of a kernel package: ``vmlinux``, and ``modules/`` whose names sort in load order."""

    folder: Path

    @property
    def vmlinux(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def modules(self) -> list[Path]:
        return sorted((self.folder / "modules").iterdir())

    @classmethod
    def cached(cls, cache: Path) -> "Kernel | None":
        """Return a kernel that is kept there with all of MODULES, None if there is none."""
        folder = cache / f"kernel-{_recipe()}"
        return cls(folder) if folder.is_dir() else None

    @classmethod
    def fetch(cls, cache: Path, say: Callable[[str], None]) -> "Kernel":
        """Download Debian's current kernel, keep what is needed of it and return that.

        Raises:
            Missing: apt has no such package, or it cannot be downloaded.
        """
        package = _package()
        say(f"apt-get download {package}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="unpack-", dir=cache) as scratch:
            tree, kept = Path(scratch, "tree"), Path(scratch, "kept")
            apt("download", package, cwd=Path(scratch))
            subprocess.run(["dpkg", "-x", next(Path(scratch).glob("*.deb")), tree], check=True)
            (kept / "modules").mkdir(parents=True)
            for number, module in enumerate(load_order(tree, MODULES)):
                shutil.copy(module, kept / "modules" / f"{number:02}-{module.name}")
            bzimage = next((tree / "boot").glob("vmlinuz-*"))
            (kept / "vmlinux").write_bytes(unpack_vmlinux(bzimage.read_bytes()))
            target = cache / f"kernel-{_recipe()}"
            shutil.rmtree(target, ignore_errors=True)
            kept.rename(target)
        return cls(target)


def _recipe() -> str:
    """Return a name that changes with what is taken from the package."""
    return "-".join(MODULES).replace("_", "")


def _package() -> str:
    def depends() -> str | None:
        found = re.search(r"Depends: (linux-image-\S+)", apt("apt-cache", "depends", META_PACKAGE))
        return found[1] if found else None

    try:
        package = depends()
    except Missing:
        package = None
    if package is None and os.geteuid() == 0:  # a fresh machine's lists are empty
        apt("update")
        package = depends()
    if package is None:
        raise Missing(f"apt knows no {META_PACKAGE}, Debian's kernel with Soft-RoCE")
    return package
