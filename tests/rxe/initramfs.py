"""The archive that the kernel finds its first files in: cpio in the "newc" form (kernel, Documentation/driver-api/early-userspace)."""

import stat
from dataclasses import dataclass
from pathlib import Path

from rxe.kernel import Kernel

__all__ = ["Entry", "archive", "initramfs"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A file, or a folder where there is no content."""

    name: str
    content: bytes | None = None
    executable: bool = False

    @property
    def mode(self) -> int:
        if self.content is None:
            return stat.S_IFDIR | 0o755
        return stat.S_IFREG | (0o755 if self.executable else 0o644)


def archive(entries: list[Entry]) -> bytes:
    """Return the entries as one archive, in their order, which must have folders before what is in them."""
    parts = []
    for inode, entry in enumerate([*entries, Entry("TRAILER!!!", b"")], 1):
        name, content = entry.name.encode() + b"\0", entry.content or b""
        # c_ino c_mode c_uid c_gid c_nlink c_mtime c_filesize c_dev (2) c_rdev (2) c_namesize c_check
        fields = (inode, entry.mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        parts += [_padded(header + name), _padded(content)]
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def initramfs(kernel: Kernel, busybox: Path = Path("/bin/busybox")) -> bytes:
    """Return the guest's initramfs: busybox, the modules with their order, and init."""
    modules = kernel.modules
    entries = [Entry(folder) for folder in ("bin", "dev", "host", "memory", "modules", "proc", "root", "sys")]
    entries += [Entry("bin/busybox", busybox.read_bytes(), executable=True), Entry("init", (HERE / "init").read_bytes(), executable=True)]
    entries += [Entry(f"modules/{module.name}", module.read_bytes()) for module in modules]
    return archive([*entries, Entry("modules/order", "".join(f"{module.name}\n" for module in modules).encode())])
