"""All point-to-point perf tests: kernels of every one run on two PEs over every transport, and what a wrong one is caught by."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import check_gpu
import pytest
from jobs import also
from perf_runs import mpirun, with_mpirun
from point_to_point import ATOMICS, FEW, NAMES, TESTS
from test_perftests import ROW, a_report

from pgas.perftests import compare
from pgas.perftests.harness import options
from pgas.perftests.harness.report import BANDWIDTH, LATENCY

PROGRAM = Path(__file__).parents[1] / "support" / "point_to_point.py"


@pytest.mark.slow
@with_mpirun
@pytest.mark.parametrize("transport", ["p2p", "ibgda", also("ibrc")])
def test_every_test_on_two_pes(transport, tmp_path):
    """Every row is validated: bytes, turns, fetched values, and through a NIC the WQEs and bytes that the card counted."""
    mpirun(2, PROGRAM, tmp_path, timeout=290, PGAS_TRANSPORT=transport)
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
    mpirun(3, PROGRAM, tmp_path, timeout=600, PGAS_TRANSPORT="p2p,ibgda", PGAS_PES_PER_NODE="2,1")
    found = {path.stem: json.loads(path.read_text())["rows"] for path in tmp_path.glob("*.json")}
    assert set(found) == {*FEW, *(f"shmem_atomic_bw-{op}" for op in ATOMICS)} - {"shmem_st_bw"}
    for name, rows in found.items():
        assert all(row["validated"] for row in rows), name
        near, far = ([row["size"] for row in rows if row["path"] == path] for path in ("p2p", "ibgda"))
        assert near == far, name
        by_nic = "atomic" in name  # also of near PEs
        assert all((row["wqes"] > 0) == (by_nic or row["path"] == "ibgda") for row in rows), name


#: Test, what its kernels are replaced by, flags, what is said.
WRONG = {
    "an element that is left out": (
        "shmem_put_bw",
        "@pgas.jit\n"
        "def kernel(dest, source, counter, start, iters, pe):\n"
        "    pgas.put_block(dest[1:], source[1:], pe)\n"
        "kernels = {'block': kernel}\n",
        "-b 1K -e 1K -c 1",
        r"size 1024: PE 1: 8 wrong bytes, the first at offset 0 \(message\): 0x",
    ),
    "a put that is sent twice": (  # its data is right
        "shmem_put_bw",
        "@pgas.jit\n"
        "def kernel(dest, source, counter, start, iters, pe):\n"
        "    for i in range(2 * iters):\n"
        "        pgas.put_block(dest, source, pe)\n"
        "kernels = {'block': kernel}\n",
        "-b 1K -e 1K -c 1 -n 3 --transport ibgda",
        "size 1024: PE 0: the software NIC executed 6 WQEs instead of 3 for 3 messages of 3072 bytes",
    ),
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
        "size 64: PE 1: in the warm-up, 16 elements did not have the value of their iteration when its flag had arrived",
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
    done = mpirun(2, program, *flags.split(), "--json", tmp_path / "run.json", status=1)
    assert re.search(words, done.stderr), done.stderr
    assert re.search(r"^\d+ +(thread|block) +- .* NO( +\d+)*  # interpreter$", done.stdout, re.MULTILINE)
    row = json.loads((tmp_path / "run.json").read_text())["rows"][0]
    assert (row["validated"], row["bw_gbps"], row["latency_us"]) == (False, None, None)


#: Not a multiple of 1024, which would be printed with the suffix K.
A_FIFTH = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 5 // 1024 * 1024 + 8

#: PEs, command, variables, what is said. Sizes larger than the machine are refused before memory is allocated: by init, or after it, as a
#: heap of the simulator takes memory only when touched.
REFUSED = [
    (1, "shmem_put_bw", {}, "needs exactly 2 PEs"),
    also(2, "shmem_p_bw -i 0", {}, "argument -i/--stride: 0 is out of range; it must be 1 to 2147483647\n"),
    also(2, "shmem_put_bw -s warp -t 48", {}, "argument -t/--threads_per_cta: 48"),
    also(2, "shmem_put_bw --json /nowhere/x.json", {}, "argument --json: "),
    also(
        2, "shmem_st_bw --transport ibrc", {}, "needs p2p, and this job's transport is ibrc: plain stores reach the memory of a peer only"
    ),
    (
        2,
        "shmem_put_bw -b 1M -e 4M",
        {"PGAS_SYMMETRIC_SIZE": "3M", "PGAS_MAX_MEMORY_PER_GPU": "3M"},
        "argument -e/--max_size: 4M needs 8389120 bytes of symmetric heap on each PE, which may have 4194304\n",
    ),
    also(2, "shmem_put_bw -b 1M -e 1T", {}, "argument -e/--max_size: 1T: PGAS_SYMMETRIC_SIZE=2 TiB: the heaps of PEs 0, 1 take "),
    (
        2,
        f"shmem_put_bw -b 1M -e {A_FIFTH}",
        {},
        f"argument -e/--max_size: {A_FIFTH} needs {6 * (2 * A_FIFTH + 512)} bytes of this machine's memory for its data and the checks",
    ),
    also(1, "reduction_latency -o and -d float", {}, "argument -o/--reduce_op: and takes integers, and the datatype is float\n"),
    also(1, "alltoall_latency -c 17", {}, "argument -c/--ctas: 17 blocks need a channel each, and the team has 16 (PGAS_CHANNELS)\n"),
]


@with_mpirun
@pytest.mark.parametrize(("npes", "line", "variables", "said"), REFUSED)
def test_runs_that_are_refused(npes, line, variables, said):
    """One sentence of one PE, and exit status 2."""
    test, *flags = line.split()
    module = ["pgas.perftests.coll_latency", test] if test not in NAMES else [f"pgas.perftests.{test}"]
    done = mpirun(npes, "-m", *module, *flags, status=2, **variables)
    assert done.stdout == ""
    assert f"{test}: error: {said}" in done.stderr
    assert done.stderr.count("error:") == 1


# ----------------------------------------------------------------------------------------------------- beside NVSHMEM's


def test_comparison_with_nvshmems_figures(tmp_path, capsys):
    """A row of NVSHMEM's with as many CTAs and threads, of the same scope if its table has scopes; otherwise a dash."""
    rows = [replace(ROW, scope=scope, size=4, bw_gbps=None, latency_us=0.7) for scope in ("thread", "block")]
    rows.append(replace(rows[0], size=12))
    run = tmp_path / "run.json"
    a_report(test="shmem_put_latency", measures=LATENCY, unit="a put", rows=rows, gpu="NVIDIA H200").write_json(str(run))
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


#: As NVSHMEM's tests print it, but for columns behind.
OF_NVSHMEM = """
#reduction_on_stream
size(B)     count     type      redop     latency(us)       min_lat(us)       max_lat(us)       algbw(GB/s)   busbw(GB/s)
4096        512       int64     sum       20.786560         12.928            41.312            0.197
4096        512       int64     prod      30.0              12.928            41.312            0.197
524288      65536     int64     sum       26.322240         16.608            50.048            19.918
"""
A_BARRIER = "#barrier_all_on_stream\nsize(B)     scope     latency (us)\n1           None      6.012480\n"


def test_collectives_next_to_other_libraries(tmp_path, monkeypatch, capsys):
    """NVSHMEM's own test, its recorded figures, or none; the ratio is to the fastest, or to the floor."""
    assert compare.figures_of_nvshmem(OF_NVSHMEM) == {4096: 20.78656, 524288: 26.32224}
    assert compare.figures_of_nvshmem(A_BARRIER) == {0: 6.01248}
    program = tmp_path / "host" / "reduction_on_stream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntest "$NVSHMEM_DISABLE_NVLS" = 1 && cat <<END\n{OF_NVSHMEM}\nEND\n')
    program.chmod(0o755)
    monkeypatch.setattr(compare.jobs, "mpirun", lambda n: ["env"])
    rows = [
        {"collective": "reduce", "size": 4096, "pgas": 6.0, "NCCL": 24.0, "symmetric memory": 12.0, "floor": 2.0, "validated": True},
        {"collective": "barrier", "size": 0, "pgas": 4.0, "floor": 2.0, "validated": True},
    ]
    run = {"test": "coll_compare", "machine": "box", "gpu": "NVIDIA H100 80GB HBM3", "npes": 4, "transport": "p2p", "args": {}}
    run |= {"date": "2026-11-27", "command": "it", "peers": "", "missing": {}, "put_gbps": 300.0, "launch_us": 2.0, "rows": rows}
    for folder, found in ((str(tmp_path), (20.78656, None)), (None, (20.78656, 6.01248))):
        compare._add_nvshmem(run, folder)
        assert tuple(row["NVSHMEM"] for row in rows) == found
    assert capsys.readouterr().err.count("failed:") == 5
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    assert compare.main([str(path), "--collectives", "--json", str(tmp_path / "all.json")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == [
        ["reduce", "4K", "6.0", "20.8", "24.0", "12.0", "2.0", "0.50", "symmetric", "memory"],
        ["barrier", "4.0", "6.0", "-", "-", "2.0", "0.67", "NVSHMEM"],
    ]
    assert json.loads((tmp_path / "all.json").read_text())["runs"] == [run]
    lines = list(compare.markdown([run | {"npes": 2, "rows": rows[:1]}, run]))
    assert "| reduce, 4 KiB | 6.0 / 6.0 | 20.8 / 20.8 | 24.0 / 24.0 | 12.0 / 12.0 | 2.0 / 2.0 |" in lines
    assert "| barrier |  / 4.0 |  / 6.0 |  |  |  / 2.0 |" in lines


def test_commands_that_are_compared_are_accepted():
    tests = dict(zip(NAMES, TESTS, strict=True))
    for line in (*check_gpu.MEASUREMENTS.values(), *check_gpu.NIC_LATENCIES.values()):
        name, *flags = line.split()
        chosen = options.parse(name, "", tests[name].defaults, tests[name].scopes, flags)
        assert list(tests[name].workloads(chosen)), line
