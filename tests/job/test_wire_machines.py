"""Jobs on two machines without RDMA devices, over the wire of the software NIC."""

import re
import time

import pytest
from two_machines import run

from pgas.base.backend import SIMULATOR

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="its jobs run in the simulator")

PROGRAM = """
import numpy as np
import pgas

@pgas.jit
def kernel(data, fetched, sums, flag, rounds):
    me, n = pgas.my_pe(), pgas.n_pes()
    right, left = (me + 1) % n, (me + n - 1) % n
    for turn in range(rounds):
        for i in range(data.size // 2):
            data[i] = 1000 * turn + 10 * i + me
        pgas.put_signal(data[data.size // 2:], data[:data.size // 2], flag, 0, 1, pgas.SIGNAL_ADD, right)
        pgas.signal_wait_until(flag, 0, pgas.GE, turn + 1)
        for pe in range(n):
            pgas.atomic_add(sums, 0, turn + 1, pe)
            pgas.atomic_fetch_add(sums, 1, me + 1, pe)
        pgas.get(fetched, data[:data.size // 2], left)
        pgas.quiet()
        for i in range(fetched.size):
            if fetched[i] != data[data.size // 2 + i] or fetched[i] != 1000 * turn + 10 * i + left:
                pgas.atomic_add(sums, 2, 1, 0)
        pgas.barrier_all()

with pgas.init():
    me, n, rounds = pgas.my_pe(), pgas.n_pes(), ROUNDS
    data, fetched = pgas.zeros(6000, np.int64), pgas.zeros(3000, np.int64)
    sums, flag = pgas.zeros(3, np.int64), pgas.zeros(1, np.uint64)
    pgas.barrier_all()
    kernel[1, 1](data, fetched, sums, flag, rounds)
    pgas.barrier_all()
    expected = [n * rounds * (rounds + 1) // 2, rounds * n * (n + 1) // 2, 0]
    found = sums.copy_to_host().tolist()
    assert found == expected, (found, expected)
    total = pgas.zeros(1, np.int64)
    pgas.reduce(pgas.TEAM_WORLD, total, pgas.array(np.array([me + 1])), pgas.SUM)
    assert total.copy_to_host()[0] == n * (n + 1) // 2
    print("right", flush=True)
"""

#: What the bridge does, and the names of its counters that must then be above 0.
LINKS = {
    "good": ("", ()),
    "loss": ("seed=1 loss=0.01", ("lost",)),
    "reorder": ("seed=2 reorder=0.05", ("reordered",)),
    "repeat": ("seed=3 repeat=0.05", ("repeated",)),
    "corrupt": ("seed=4 corrupt=0.01", ("damaged",)),
    "late": ("seed=5 delay=0.02", ()),
    "all": ("seed=6 loss=0.01 reorder=0.02 repeat=0.02 corrupt=0.01 delay=0.002", ("lost", "reordered", "repeated", "damaged")),
}

CHAPTERS = [f"tests/conformance/test_{name}.py" for name in ("rma", "atomics", "signals", "collectives")]

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("transport", "n", "link"),
    [
        ("ibgda", 1, "all"),
        pytest.param("ibrc", 1, "all", marks=slow),
        pytest.param("auto", 2, "good", marks=slow),
        *(pytest.param(transport, 2, link, marks=slow) for transport in ("p2p,ibgda", "p2p,ibrc") for link in LINKS),
    ],
)
def test_a_program(tmp_path, transport, n, link):
    """put_signal, get, atomics whose sums are exact, barriers, and a reduction, on a good link and a bad one."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "12"))
    faults, counted = LINKS[link]
    ended = run(tmp_path, "program.py", n=n, faults=faults, PGAS_TRANSPORT=transport, PGAS_DEBUG="info")
    assert ended.statuses == [0, 0], ended
    assert sum(output.count("right") for output in ended.outputs) == 2 * n
    assert "over the software NICs of the nodes, with RoCE v2 over UDP between them (cpu engine)" in ended.outputs[0]
    assert ended.bridge["packets"] > 100
    assert [name for name in counted if not ended.bridge[name]] == []


def test_a_program_by_dma(tmp_path):
    """A kernel reads and writes the PEs' memory for the software NIC, like that of GPUs."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "2"))
    ended = run(tmp_path, "program.py", PGAS_TRANSPORT="p2p,ibgda", PGAS_ENGINE="dma", PGAS_DEBUG="info")
    assert ended.statuses == [0, 0], ended
    assert "with RoCE v2 over UDP between them (dma engine)" in ended.outputs[0]
    assert ended.bridge["packets"] > 100


def test_a_route_with_a_smaller_mtu(tmp_path):
    """A router reports it, before queue pairs are connected; their MTU would otherwise be 4,096, as the interfaces have 9,000."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "2"))
    ended = run(tmp_path, "program.py", route_mtu=1400, PGAS_TRANSPORT="ibgda", PGAS_DEBUG="info")
    assert ended.statuses == [0, 0], ended
    assert [output.count("right") for output in ended.outputs] == [1, 1]


@slow
def test_a_program_over_ipv6(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "12"))
    ended = run(tmp_path, "program.py", faults=LINKS["all"][0], version=6, PGAS_TRANSPORT="ibgda")
    assert ended.statuses == [0, 0], ended
    assert ended.bridge["lost"]


@slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("transport", "n", "link"),
    [
        *((transport, 1, "good") for transport in ("ibgda", "ibrc")),
        *((transport, 2, link) for transport in ("p2p,ibgda", "p2p,ibrc") for link in ("good", "all")),
    ],
)
def test_conformance(tmp_path, transport, n, link):
    from two_machines import ROOT

    paths = [str(ROOT / chapter) for chapter in CHAPTERS]
    arguments = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        ROOT,
        "-c",
        ROOT / "pyproject.toml",
        "-m",
        "not slow",
        *paths,
    )
    ended = run(tmp_path, *arguments, n=n, faults=LINKS[link][0], timeout_s=1700, PGAS_TRANSPORT=transport)
    assert ended.statuses == [0, 0], [output[-3000:] for output in ended.outputs]
    assert sum(bool(re.search(r"\d{3} passed", output)) for output in ended.outputs) == 2


@slow
def test_a_link_that_is_down_for_two_seconds(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "300"))
    hook = "until [ -s first ]; do sleep 0.1; done; sleep 1; kill -USR1 $bridge; sleep 2; kill -USR1 $bridge"
    ended = run(tmp_path, "program.py", hook=hook, PGAS_TRANSPORT="ibgda", PGAS_DEBUG="info")
    assert ended.statuses == [0, 0], ended
    assert ended.bridge["lost"] > 3


@slow
def test_a_link_that_stays_down(tmp_path):
    """Only RoCE packets are lost, so that the store cannot tell; the error names the PE."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("ROUNDS", "100_000"))
    hook = "until [ -s first ]; do sleep 0.1; done; sleep 2; date +%s > cut; kill -USR1 $bridge"
    ended = run(tmp_path, "program.py", hook=hook, PGAS_TRANSPORT="ibgda", PGAS_DEBUG="info", PGAS_IB_TIMEOUT="16", PGAS_TIMEOUT="20")
    took = time.time() - int((tmp_path / "cut").read_text())
    assert 0 not in ended.statuses
    assert took < 20 + 10 + 5
    first = [rf"PE {me}, block 0, .* queue pair \d+ to PE {1 - me} .*transport retry counter exceeded" for me in range(2)]
    assert any(re.search(text, output) for text, output in zip(first, ended.outputs, strict=True)), ended
    assert all(re.search(r"PE [01].*(failed|ended|transport retry counter exceeded)", output) for output in ended.outputs), ended
