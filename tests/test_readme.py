"""What the README shows runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MPIRUN = Path(sys.executable).with_name("mpirun")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("npes", [1, 2, 3])
def test_the_program(tmp_path, npes):
    if npes > 1 and not MPIRUN.exists():
        pytest.skip("no mpirun beside this Python")
    program = tmp_path / "shift.py"
    program.write_text(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1])
    command = [str(MPIRUN), "-n", str(npes)] * (npes > 1) + [sys.executable, str(program)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    expected = [f"PE {pe} got {float((pe - 1) % npes)} from its left neighbour" for pe in range(npes)]
    # mpirun passes on what each PE writes as it comes: lines of two PEs may be joined.
    assert sorted(re.findall(r"PE \d got [\d.]+ from its left neighbour", done.stdout)) == expected


def test_links_and_commands():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"make ([a-z-]+)", README):
        assert target in targets, target
    for path in re.findall(r"`((?:pgas|kernels|transports|tests|perftests)/[\w./-]*)`", README):
        assert (ROOT / path).exists(), path
