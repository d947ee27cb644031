"""Jobs of 2 + 2 PEs on two machines over the wire of the software NIC, with the kernel's netem between them.

In the guest: make check-rxe-netem.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from rxe import nodes

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/job"))

from test_wire_machines import CHAPTERS, PROGRAM  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists("/sys/class/infiniband/rxe0"), reason="capability missing: the guest's kernel (make check-rxe-netem)"
    ),
    pytest.mark.timeout(3000),
]

JOB = {
    "PGAS_HCA": "softhca", "PGAS_SYMMETRIC_SIZE": "64M", "PGAS_TIMEOUT": "120", "NUMBA_ENABLE_CUDASIM": "1", "PGAS_DEBUG": "info",
}  # fmt: skip

#: Arguments of netem, for each direction.
LINKS = {
    "loss": "loss 1%",
    "reorder": "delay 2ms reorder 5%",
    "duplicate": "duplicate 1%",
    "corrupt": "corrupt 1%",
    "late": "delay 20ms",
}


@pytest.mark.parametrize("transport", ["ibgda", "p2p,ibgda"])
@pytest.mark.parametrize("link", LINKS)
def test_a_program(tmp_path, transport, link):
    """put_signal, get, atomics whose sums are exact, barriers, and a reduction."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "6"))
    with nodes.apart(LINKS[link]):
        job = nodes.run(tmp_path, [str(tmp_path / "program.py")], {**os.environ, **JOB, "PGAS_TRANSPORT": transport})
        print(nodes.NODES[0].netem())
    assert job.statuses == [0, 0], job
    assert job.out.count("right") == 4, job


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_conformance(tmp_path, chapter):
    program = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", str(ROOT / chapter)]
    with nodes.apart(LINKS["loss"]):
        job = nodes.run(tmp_path, program, {**os.environ, **JOB, "PGAS_TRANSPORT": "p2p,ibgda"}, limit=2800)
        print(nodes.NODES[0].netem())
    assert job.statuses == [0, 0], job
    assert all(re.search(r"\d+ passed", out) for out in job.outs), job
