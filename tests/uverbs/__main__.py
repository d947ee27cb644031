"""``python -m uverbs [--local] COMMAND ...``: run a command with emulated RDMA devices; --local: each process has its own card."""

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from pgas.transports.softhca.process import client
from uverbs import cards, devices, process

_TESTS = Path(__file__).resolve().parent.parent

#: Number of contexts after which the card would end: never, it ends with this process.
_CONTEXTS = 1 << 15

#: Debian's folder of pyverbs, which a virtual environment does not see.
_DEBIAN = Path("/usr/lib/python3/dist-packages/pyverbs")


def missing() -> str | None:
    """Return what this machine lacks for the emulation, None if nothing."""
    if shutil.which("gcc") is None:
        return "gcc"
    for library in ("ibverbs", "mlx5"):
        if ctypes.util.find_library(library) is None:
            return f"lib{library} (Debian: ibverbs-providers)"
    if importlib.util.find_spec("pyverbs") is None and not _fits():
        return "pyverbs (Debian: python3-pyverbs)"
    return None


def _fits() -> bool:
    """Whether Debian's pyverbs is built for this Python."""
    return (_DEBIAN / f"device{sysconfig.get_config_var('EXT_SUFFIX')}").exists()


def _site(folder: Path) -> str:
    """Return a folder with pyverbs and nothing else, "" if pyverbs can be imported without it."""
    if importlib.util.find_spec("pyverbs") is not None:
        return ""
    site = folder / "site"
    site.mkdir()
    (site / "pyverbs").symlink_to(_DEBIAN)
    return str(site)


def build(folder: Path) -> Path:
    shim = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    return shim


def main(command: list[str]) -> int:
    if (what := missing()) is not None:
        print(f"uverbs: capability missing: {what}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="uverbs-") as name:
        folder = Path(name)
        shim = build(folder)
        devices.write_tree(folder / "sys")
        local = command[:1] == ["--local"]
        card = None if local else client.start(_CONTEXTS)
        path = os.pathsep.join(filter(None, (str(_TESTS), str(_TESTS / "support"), _site(folder), os.environ.get("PYTHONPATH", ""))))
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(filter(None, (str(shim), os.environ.get("LD_PRELOAD", "")))),
            "PYTHONPATH": path,
            "SYSFS_PATH": str(folder / "sys"),
            process.SHIM: str(shim),
            cards.CARD: cards.LOCAL if card is None else card.name,
            "CONFORMANCE_WITHOUT": "" if local else ",".join(cards.WITHOUT),
        }
        try:
            return subprocess.run(command[local:], env=environment, check=False).returncode
        finally:
            if card is not None:
                card.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
