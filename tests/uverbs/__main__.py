"""``python -m uverbs [--local] COMMAND ...``: run a command in which RDMA devices exist; --local: each process has a card of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pgas.transports.softhca import client
from uverbs import cards, devices, process

_TESTS = Path(__file__).resolve().parent.parent

#: Contexts that the card serves before it ends by itself: it ends with this process.
_CONTEXTS = 1 << 15


def build(folder: Path) -> Path:
    """Compile the shim."""
    shim = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    return shim


def main(command: list[str]) -> int:
    """Run a command and return its exit status."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    with tempfile.TemporaryDirectory(prefix="uverbs-") as name:
        folder = Path(name)
        shim = build(folder)
        devices.write_tree(folder / "sys")
        local = command[:1] == ["--local"]
        card = None if local else client.start(_CONTEXTS)
        path = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH", ""))))
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(filter(None, (str(shim), os.environ.get("LD_PRELOAD", "")))),
            "PYTHONPATH": path,
            "SYSFS_PATH": str(folder / "sys"),
            process.SHIM: str(shim),
            cards.CARD: cards.LOCAL if card is None else card.name,
        }
        try:
            return subprocess.run(command[local:], env=environment, check=False).returncode
        finally:
            if card is not None:
                card.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
