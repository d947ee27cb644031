"""All point-to-point perf tests: kernels of every one run on two PEs over every transport, and what a wrong one is caught by."""

import json
import re
from dataclasses import replace
from pathlib import Path

import check_gpu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import also
from perf_runs import mpirun, with_mpirun
from point_to_point import ATOMICS, FEW, NAMES, TESTS
from test_perftests import ROW, a_report

from pgas.perftests import compare
from pgas.perftests.harness import atomics, options, plot, report
from pgas.perftests.harness.report import BANDWIDTH, LATENCY
from pgas.perftests.harness.workload import p_workload, rounds_of_warps

PROGRAM = Path(__file__).parents[1] / "support" / "point_to_point.py"


def test_names_are_nvshmems():
    assert [test.name for test in TESTS] == NAMES


@pytest.mark.slow
@with_mpirun
@pytest.mark.parametrize("transport", ["p2p", "ibgda", also("ibrc")])
def test_every_test_on_two_pes(transport, tmp_path):
    """Every row is validated: bytes, turns, fetched values, and through a NIC the WQEs and bytes that the card counted."""
    done = mpirun(2, PROGRAM, tmp_path, timeout=290, PGAS_TRANSPORT=transport)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    expected = {*FEW, *(f"shmem_atomic_bw-{op}" for op in ATOMICS)} - (set() if transport == "p2p" else {"shmem_st_bw"})
    assert set(found) == expected
    for name, run in found.items():
        assert run["transport"] == transport
        assert run["measures"] == (LATENCY if "latency" in name else BANDWIDTH)
        for row in run["rows"]:
            figures = (row["latency_us"],) if run["measures"] == LATENCY else (row["bw_gbps"], row["mops"])
            others = (row["bw_gbps"], row["mops"]) if run["measures"] == LATENCY else (row["latency_us"],)
            assert row["validated"], (name, row)
            assert all(figure > 0 for figure in figures)
            assert others in ((None,), (None, None))
            assert (row["wqes"] is None) == (transport == "p2p")
    signals = found["shmem_signal_ping_pong_latency"]["rows"]
    assert [(row["size"], row["messages"]) for row in signals] == [(8, 5)]
    assert [row["wqes"] for row in signals] == [None if transport == "p2p" else 10]
    assert [row["scope"] for row in found["shmem_get_latency"]["rows"]] == [s for s in ("thread", "warp", "block") for _ in range(3)]


@pytest.mark.slow
@with_mpirun
def test_every_test_in_a_job_with_two_paths(tmp_path):
    """Rows of a near PE and of a far one, all validated."""
    done = mpirun(3, PROGRAM, tmp_path, timeout=600, PGAS_TRANSPORT="p2p,ibgda", PGAS_PES_PER_NODE="2,1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.stem: json.loads(path.read_text())["rows"] for path in tmp_path.glob("*.json")}
    assert set(found) == {*FEW, *(f"shmem_atomic_bw-{op}" for op in ATOMICS)} - {"shmem_st_bw"}
    for name, rows in found.items():
        assert all(row["validated"] for row in rows), name
        near, far = ([row["size"] for row in rows if row["path"] == path] for path in ("p2p", "ibgda"))
        assert near == far, name
        by_nic = "atomic" in name  # also of near PEs
        assert all((row["wqes"] > 0) == (by_nic or row["path"] == "ibgda") for row in rows), name


@with_mpirun
def test_plain_stores_over_a_nic_are_refused():
    done = mpirun(2, "-m", "pgas.perftests.shmem_st_bw", "--transport", "ibrc")
    assert done.returncode == 2
    assert "shmem_st_bw: error: needs p2p, and this job's transport is ibrc: plain stores reach the memory of a peer only" in done.stderr


#: Test, what its kernels are replaced by, flags, what is said.
WRONG = {
    "a message that is left out": (
        "shmem_put_ping_pong_latency",
        "@cuda.jit(device=True)\n"
        "def send(dest, source, flag, turn, pe):\n"
        "    if turn != 2:\n"
        "        pgas.put(dest, source, pe)\n"
        "    pgas.fence()\n"
        "    ping_pong.signal(flag, turn, pe)\n"
        "kernels = {'thread': ping_pong.kernel(send, 'thread')}\n",
        "-b 64 -e 64 -n 2 -w 3",
        "size 64: PE 1: in the warm-up, 16 elements did not have the value of their turn when its flag had arrived",
    ),
    "an atomic too many": (
        "shmem_atomic_latency",
        "@pgas.jit\n"
        "def kernel(dest, source, fetched, counter, start, iters, pe):\n"
        "    for i in range(iters + 1):\n"
        "        pgas.atomic_inc(dest, 0, pe)\n"
        "    pgas.quiet()\n"
        "kernels = {'inc': kernel}\n",
        "-n 3",
        r"size 4: PE 1: \d+ wrong bytes?",
    ),
    "a fetch of the new value": (
        "shmem_atomic_latency",
        "@pgas.jit\n"
        "def kernel(dest, source, fetched, counter, start, iters, pe):\n"
        "    for i in range(iters):\n"
        "        fetched[0] ^= np.uint64(pgas.atomic_fetch_inc(dest, 0, pe)) + np.uint64(1)\n"
        "kernels = {'fetch_inc': kernel}\n",
        "-n 3 -w 0 -a fetch_inc",
        "size 4: PE 0: 1 threads fetched wrong values, the first of them thread 0",
    ),
}


@with_mpirun
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_caught(name, tmp_path):
    test, kernels, flags, words = WRONG[name]
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys\nfrom dataclasses import replace\nimport numpy as np\nimport pgas\nfrom numba import cuda\n"
        f"from pgas.perftests import ping_pong, {test}\nfrom pgas.perftests.harness import pair\n\n{kernels}"
        f"sys.exit(pair.run(replace({test}.TEST, kernels=kernels)))\n"
    )
    done = mpirun(2, program, *flags.split())
    assert done.returncode == 1, done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert re.search(r"^\d+ +thread +- .* NO  # interpreter$", done.stdout, re.MULTILINE)


# ------------------------------------------------------------------------------------------------------------- atomics

CHANGES = {
    "inc": lambda old, value, other: old + 1, "add": lambda old, value, other: old + value, "and": lambda old, value, other: old & value,
    "or": lambda old, value, other: old | value, "xor": lambda old, value, other: old ^ value, "set": lambda old, value, other: other,
    "swap": lambda old, value, other: other, "fetch": lambda old, value, other: old,
    "compare_swap": lambda old, value, other: other if old == ~other & 0xFFFF_FFFF else old,
}  # fmt: skip


@pytest.mark.parametrize("name", atomics.OPERATIONS)
@given(old=st.integers(0, 2**32 - 1), value=st.integers(0, 2**32 - 1), hit=st.booleans(), iters=st.integers(0, 5))
def test_oracle(name, old, value, hit, iters):
    """Against Python's integers; compare_swap begins with what its first comparison wants, or not."""
    old = value if hit else old
    memory, seen = atomics.oracle(name, np.array([old], np.uint32), np.array([value], np.uint32), iters)
    change = CHANGES[name if name in CHANGES else name.removeprefix("fetch_")]
    fetched = 0
    for i in range(iters):
        fetched ^= old
        old = change(old, value, value if i & 1 else ~value & 0xFFFF_FFFF) & 0xFFFF_FFFF
    assert (int(memory[0]), int(seen[0])) == (old, fetched)


@given(nelems=st.integers(1, 3000), ctas=st.integers(1, 4), threads=st.integers(1, 100))
def test_rounds_of_warps_hold_every_element_once(nelems, ctas, threads):
    work = p_workload(4 * nelems, "int", 1, ctas, threads)
    rounds = list(rounds_of_warps(work))
    assert sum(count * lanes for count, lanes in rounds) == nelems
    assert all(0 <= lanes <= 32 for _, lanes in rounds)


# ------------------------------------------------------------------------------------------------------------- latency


def a_latency_report(**changes):
    rows = [replace(ROW, size=s, scope=scope, bw_gbps=None, mops=None, latency_us=s / 10) for scope in ("thread", "warp") for s in (4, 64)]
    return a_report(**{"test": "shmem_put_latency", "measures": LATENCY, "unit": "a put and its quiet", "rows": rows, **changes})


def test_latency_table():
    made = a_latency_report()
    lines = report.title_lines(made, False)
    assert lines[-3:] == [
        "# latency: a put and its quiet",
        "#shmem_put_latency",
        "size(B)     scope     latency (us)    threads  type     validated",
    ]
    assert report.row_line(made.rows[0], LATENCY).split() == ["4", "thread", "0.400000", "32", "float64", "yes"]
    assert report.row_line(replace(made.rows[0], latency_us=None, validated=False), LATENCY).split()[2] == "-"


@pytest.mark.parametrize(
    ("test", "title"),
    [("shmem_get_bw", "#shmem_get_bw_uni"), ("shmem_atomic_bw", "#shmem_atomic_fetch_add"),
     ("shmem_atomic_latency", "#shmem_at_fetch_add_ping_lat"), ("shmem_g_latency", "#shmem_g_latency"),
     ("shmem_signal_ping_pong_latency", "#shmem_sig_ping_lat")],
)  # fmt: skip
def test_tables_have_nvshmems_names(test, title):
    made = a_report(test=test)
    made.args = {**made.args, "atomic_op": "fetch_add"}
    assert report.title_lines(made, False)[-2] == title


def test_flags_of_a_latency_test(capsys):
    test = TESTS[NAMES.index("shmem_put_latency")]

    def parse(*argv):
        return options.parse(test.name, test.description, test.defaults, test.scopes, argv)

    assert parse().scope == "all"
    works = list(test.workloads(parse("-e", "8", "-t", "1024")))
    assert [(work.scope, work.ctas, work.threads, work.size) for work in works] == [
        (scope, 1, threads, size) for scope, threads in (("thread", 1), ("warp", 32), ("block", 1024)) for size in (4, 8)
    ]
    for argv in (["-c", "2"], ["--bidir"], ["-s", "grid"]):
        with pytest.raises(SystemExit):
            parse(*argv)
    capsys.readouterr()


def test_defaults_of_nvshmems_that_ignore_their_flags():
    found = {name: test.defaults for name, test in zip(NAMES, TESTS, strict=True)}
    for name in ("shmem_atomic_latency", "shmem_put_atomic_ping_pong_latency"):
        assert (found[name].iters, found[name].warmup_iters) == (500, 50)
    assert found["shmem_put_atomic_ping_pong_latency"].max_size == 1 << 20
    assert found["shmem_put_latency"].datatype == "int"


def test_plot_of_latencies(tmp_path):
    run = tmp_path / "run.json"
    a_latency_report().write_json(str(run))
    picture = tmp_path / "run.png"
    assert plot.main([str(run), "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_latency_and_bandwidth_do_not_share_a_picture(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    a_latency_report().write_json(paths[0])
    a_report().write_json(paths[1])
    with pytest.raises(SystemExit) as stop:
        plot.main([*paths, "-o", str(tmp_path / "x.png")])
    assert stop.value.code == 2
    assert "b.json measures bandwidth, the first file latency" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- beside NVSHMEM's


def test_comparison_with_nvshmems_figures(tmp_path, capsys):
    """A row of NVSHMEM's with as many CTAs and threads, of the same scope if its table has scopes; otherwise a dash."""
    rows = [replace(ROW, scope=scope, size=4, bw_gbps=None, latency_us=0.7) for scope in ("thread", "block")]
    rows.append(replace(rows[0], size=12))
    run = tmp_path / "run.json"
    a_latency_report(rows=rows, gpu="NVIDIA H200").write_json(str(run))
    assert compare.main([str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-3:] == [
        ["shmem_put_latency", "thread", "4", "0.700", "1.355", "0.52", "us"],
        ["shmem_put_latency", "block", "4", "0.700", "1.424", "0.49", "us"],
        ["shmem_put_latency", "thread", "12", "0.700", "-", "-", "us"],
    ]
    rows = [replace(ROW, size=1024, bw_gbps=2.0, ctas=ctas) for ctas in (4, 32)]
    a_report(rows=rows[:1], argv=["-c", "4", "-t", "1024"], gpu=None).write_json(str(run))
    assert compare.main([str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[3:] == ["2.000", "0.667", "3.00", "GB/s", "#", "interpreter"]


def test_commands_that_are_compared_are_accepted():
    tests = dict(zip(NAMES, TESTS, strict=True))
    for line in (*check_gpu.MEASUREMENTS.values(), *check_gpu.NIC_LATENCIES.values()):
        name, *flags = line.split()
        chosen = options.parse(name, "", tests[name].defaults, tests[name].scopes, flags)
        assert list(tests[name].workloads(chosen)), line
