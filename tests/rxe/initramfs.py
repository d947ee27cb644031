"""The archive that the kernel finds its first files in: cpio in the "newc" form (kernel, Documentation/driver-api/early-userspace)."""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rxe.kernel import Kernel

__all__ = ["HERE", "Entry", "archive", "first_files"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A file, a symbolic link where ``link`` is, or else a folder where there is no content. A Path stands for what is in that file."""

    name: str
    content: bytes | Path | None = None
    executable: bool = False
    link: str | None = None
    mtime: int = 0  # seconds since 1970

    @property
    def mode(self) -> int:
        if self.link is not None:
            return stat.S_IFLNK | 0o777
        if self.content is None:
            return stat.S_IFDIR | 0o755
        return stat.S_IFREG | (0o755 if self.executable else 0o644)

    def read(self) -> bytes:
        """Return what stands behind the name in the archive."""
        if self.link is not None:
            return self.link.encode()
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content or b""


def archive(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the parts of an archive of the entries, in their order, which must have folders before what is in them."""
    for inode, entry in enumerate([*entries, Entry("TRAILER!!!", b"")], 1):
        name, content = entry.name.encode() + b"\0", entry.read()
        # c_ino c_mode c_uid c_gid c_nlink c_mtime c_filesize c_dev (2) c_rdev (2) c_namesize c_check
        fields = (inode, entry.mode, 0, 0, 1, entry.mtime, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        yield _padded(header + name)
        yield _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def first_files(kernel: Kernel, busybox: Path = Path("/bin/busybox")) -> list[Entry]:
    """Return what every guest starts with: busybox, the modules with their order, init and what it runs."""
    modules = kernel.modules
    return [
        *(Entry(folder) for folder in ("busybox", "dev", "host", "live", "memory", "modules", "proc", "sys")),
        Entry("busybox/busybox", busybox, executable=True),
        *(Entry(script, HERE / script, executable=True) for script in ("init", "live.sh", "pause.sh")),
        *(Entry(f"modules/{module.name}", module) for module in modules),
        Entry("modules/order", "".join(f"{module.name}\n" for module in modules).encode()),
    ]
