"""``make figures``: the plan of its runs, what it collects, the numbers that it says, its pictures."""

import copy
import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from pgas.perftests import figures, findings, jobs, pictures, style
from pgas.perftests.findings import COALESCED_P, LIMITED_PUT, PUT, SCATTERED_P

#: What `make check` runs of this tool; the rest is for `make check-all`.
SMOKE = ("test_a_real_run",)

MPIRUN = Path(sys.executable).with_name("mpirun")
PNG = b"\x89PNG\r\n"

# ---------------------------------------------------------------------------------------------------------- made-up data


def a_row(ctas, message_bytes, mops, **changes):
    gbps = mops * message_bytes / 1e3
    found = {"size": ctas * message_bytes, "message_bytes": message_bytes, "ctas": ctas, "threads": 1024, "bw_gbps": gbps, "mops": mops}
    return found | {"messages": 64, "wqes": 2, "validated": True} | changes


def a_run(curve, transport, ctas, rows, **environment):
    found = {"curve": curve, "transport": transport, "ctas": ctas, "command": "mpirun -n 2 x", "environment": environment}
    return found | {"succeeded": True, "date": "2026-11-21", "adapter": "softhca", "engine": "cuda", "rows": rows}


def puts(ctas, mops, most_gbps):
    sizes = [8 << power for power in range(0, 18, 2)]
    return [a_row(ctas, size, min(mops, 1e3 * most_gbps / size)) for size in sizes]


@pytest.fixture
def data():
    runs = [
        *(a_run(PUT, "ibrc", ctas, puts(ctas, 3, 300)) for ctas in (1, 64)),
        *(a_run(PUT, "ibgda", ctas, puts(ctas, ctas / 2, 300)) for ctas in (1, 64)),
        a_run(LIMITED_PUT, "ibrc", 64, puts(64, 3, 25), PGAS_SOFTHCA_GBPS="200"),
        a_run(LIMITED_PUT, "ibgda", 64, puts(64, 32, 25), PGAS_SOFTHCA_GBPS="200"),
        *(a_run(SCATTERED_P, "ibrc", ctas, [a_row(ctas, 4, 4)]) for ctas in (8, 64)),
        *(a_run(SCATTERED_P, "ibgda", ctas, [a_row(ctas, 4, 27.5 * ctas**0.5)]) for ctas in (8, 64)),
        *(a_run(COALESCED_P, "ibgda", ctas, [a_row(ctas, 4, 300 * ctas**0.5)]) for ctas in (8, 64)),
    ]
    return {
        "machine": "NVIDIA H100",
        "gpu": "NVIDIA H100",
        "commit": f"{'0123456789' * 4}-dirty",
        "date": "2026-11-21T20:00:00",
        "runs": runs,
    }


def a_file(folder, data):
    path = folder / "figures-1xH100.json"
    path.write_text(json.dumps(data))
    return path


# ------------------------------------------------------------------------------------------------------------------ plan


def test_other_numbers_of_ctas():
    runs = figures.plan(gpu=True, p_ctas=[1, 16])
    assert sorted({run.ctas for run in runs if run.curve in (SCATTERED_P, COALESCED_P)}) == [1, 16]
    assert [run for run in runs if run.curve not in (SCATTERED_P, COALESCED_P)] == [
        run for run in figures.plan(gpu=True) if run.curve not in (SCATTERED_P, COALESCED_P)
    ]


@pytest.mark.parametrize("text", ["", "0", "1,,2", "a", "1 2"])
def test_what_are_no_numbers_of_ctas(text, capsys):
    with pytest.raises(SystemExit):
        figures.main(["--ctas", text])
    assert "argument --ctas" in capsys.readouterr().err


def test_plan_on_a_gpu():
    runs = figures.plan(gpu=True)
    kinds = {(run.curve, run.transport) for run in runs}
    assert kinds == {*((curve, name) for curve in (PUT, LIMITED_PUT, SCATTERED_P) for name in ("ibrc", "ibgda")), (COALESCED_P, "ibgda")}
    assert [run.ctas for run in runs if (run.curve, run.transport) == (PUT, "ibgda")] == [1, 8, 64]
    assert [run.ctas for run in runs if run.curve == COALESCED_P] == [1, 2, 4, 8, 16, 32, 64]
    for run in runs:
        queues = {"PGAS_IBGDA_NUM_RC_PER_PE": str(run.ctas), "PGAS_QP_DEPTH": "8192"}
        assert run.environment == queues | ({"PGAS_SOFTHCA_GBPS": "200"} if run.curve == LIMITED_PUT else {})
        assert f"--transport {run.transport} " in run.command
        assert f" -c {run.ctas} -t 1024 " in run.command
    commands = [run.command for run in runs]
    assert "shmem_put_bw --transport ibgda -n 1000 -w 50 -c 64 -t 1024 -b 512 -e 64M -f 2" in commands
    assert "shmem_p_bw --transport ibrc -n 50 -w 10 -c 8 -t 1024 -i 2 -b 512K -e 512K" in commands
    assert "shmem_p_bw --transport ibgda -n 50 -w 10 -c 8 -t 1024 -i 1 -b 512K -e 512K" in commands


def test_plan_in_the_simulator_is_small():
    runs = figures.plan(gpu=False)
    assert {run.curve for run in runs} == {PUT, SCATTERED_P, COALESCED_P}
    assert {run.ctas for run in runs} == {1, 2, 4}
    assert all(" -t 32 " in run.command for run in runs)
    assert len(runs) == 15


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        ([], "simulator"),
        (["NVIDIA H100 80GB HBM3"], "1xH100-80GB-HBM3"),
        (["NVIDIA H200"] * 2, "2xH200"),
        (["NVIDIA H200"] * 8, "2xH200"),
    ],
)
def test_name_of_the_machine(gpus, name):
    assert jobs.machine_name(gpus) == name


# --------------------------------------------------------------------------------------------------------------- collect


@pytest.fixture
def fake_run(monkeypatch):
    """Stand in for mpirun: write two rows, of which one is wrong for 2 CTAs; fail without any for 4."""
    monkeypatch.setattr(figures, "mpirun", lambda n: ["mpirun", "-n", str(n)])
    monkeypatch.setenv("PGAS_SOFTHCA_SMS", "16")

    def run(command, seconds, variables):
        ctas = int(command[command.index("-c") + 1])
        if ctas == 4:
            return False
        rows = [a_row(ctas, 8, 1), a_row(ctas, 16, 1, validated=ctas != 2)]
        about = {
            "machine": "box",
            "versions": {"pgas": "1"},
            "date": "now",
            "adapter": "softhca",
            "engine": "cpu",
            "args": {},
            "rows": rows,
        }
        Path(command[-1]).write_text(json.dumps(about))
        return ctas != 2

    monkeypatch.setattr(figures, "run", run)


def test_measure_collects(fake_run):
    runs = [run for run in figures.plan(gpu=False) if run.curve == PUT and run.transport == "ibgda"]
    *_, data = figures.measure(runs, [], "abc")
    assert (data["machine"], data["gpu"], data["gpus"], data["commit"], data["versions"]) == ("box", None, 0, "abc", {"pgas": "1"})
    one, two, four = data["runs"]
    assert one["command"] == f"mpirun -n 2 {runs[0].command}"
    assert one["environment"].items() >= {"PGAS_IBGDA_NUM_RC_PER_PE": "1", "PGAS_QP_DEPTH": "8192", "PGAS_SOFTHCA_SMS": "16"}.items()
    assert (one["adapter"], one["engine"], one["date"], len(one["rows"])) == ("softhca", "cpu", "now", 2)
    assert [run["succeeded"] for run in (one, two, four)] == [True, False, False]
    assert four["rows"] == []
    assert findings.put_curves(data, PUT, "ibgda") == {1: [(8, 0.008), (16, 0.016)], 2: [(8, 0.008)]}
    assert findings.faults(data) == [
        "left out, not validated: put, ibgda, 2 CTAs, size 32 B",
        f"failed: put, ibgda, 4 CTAs: {four['command']}",
    ]


def test_what_failed_is_said_and_the_rest_is_drawn(fake_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "gpus", lambda: [])
    monkeypatch.setattr(figures.shutil, "which", lambda name: name)
    assert figures.main(["--folder", str(tmp_path), "--commit", "abc"]) == 1
    assert capsys.readouterr().out.count("failed: ") == 5
    assert json.loads((tmp_path / "figures-simulator.json").read_text())["commit"] == "abc"
    assert (tmp_path / "put_bandwidth-simulator.png").read_bytes().startswith(PNG)
    assert (tmp_path / "put_rate-simulator.png").read_bytes().startswith(PNG)


@pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
def test_a_real_run(monkeypatch):
    """A point of the simulator's plan on two PEs."""
    for name in [name for name in os.environ if name.startswith(("PMI", "HYDI", "MPI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    run = next(run for run in figures.plan(gpu=False) if run.curve == COALESCED_P and run.ctas == 2)
    (data,) = figures.measure([run], [], None)
    ((ctas, mops),) = findings.p_curve(data, COALESCED_P, "ibgda")
    assert ctas == 2
    assert 0 < mops < 1
    assert findings.p_of_a_wqe(data) >= 1
    assert "simulator" in data["machine"]
    assert data["runs"][0]["succeeded"]
    assert set(data["versions"]) > {"pgas", "numba"}


# --------------------------------------------------------------------------------------------------------------- numbers


def test_summary(data):
    assert findings.summary(data) == [
        "scattered p, peaks: ibgda's 220 M/s (64 CTAs) is 55 times ibrc's 4 M/s (8 CTAs)",
        "scattered p, 8 CTAs: ibgda does not reach ConnectX-6's 215 M/s: 77.8 M/s",
        "90% of a 25 GB/s link, 64 CTAs: ibgda with messages of 2 KiB",
        "90% of a 25 GB/s link, 64 CTAs: ibrc with messages of 8 KiB",
    ]


def test_summary_of_other_ends(data):
    for run in data["runs"]:
        if run["curve"] == SCATTERED_P and run["transport"] == "ibgda":
            run["rows"][0]["mops"] = 215.0
        if run["curve"] == LIMITED_PUT and run["transport"] == "ibrc":
            run["rows"] = puts(64, 3, 22.4)
    lines = findings.summary(data)
    assert lines[1] == "scattered p, 8 CTAs: ibgda reaches ConnectX-6's 215 M/s: 215 M/s"
    assert lines[3] == "90% of a 25 GB/s link, 64 CTAs: ibrc not up to 512 KiB: 22.4 GB/s"


def test_an_interpreter_is_not_compared_with_hardware(data):
    data["gpu"] = None
    assert not [line for line in findings.summary(data) if "ConnectX" in line]
    data["runs"] = [run for run in data["runs"] if run["curve"] == PUT]
    assert findings.summary(data) == []


def test_size_at_which_transports_are_compared():
    assert findings.compared_size({"ibrc": {1: [(8, 1), (16, 1), (32, 1)]}, "ibgda": {1: [(16, 1), (32, 1), (64, 1)]}}) == 16
    assert findings.compared_size({"ibrc": {1: [(8, 1)]}, "ibgda": {1: [(16, 1)]}}) is None
    assert findings.compared_size({"ibrc": {1: [(8, 1)]}, "ibgda": {}}) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(2.5e12, "2.5 TB/s"), (1e9, "1 GB/s"), (9.996e8, "1 GB/s"), (215e6, "215 MB/s"), (1500, "1.5 kB/s"), (3, "3 B/s"), (0, "0 B/s")],
)
def test_numbers_with_units(number, text):
    assert style.number_text(number, "B/s") == text


# -------------------------------------------------------------------------------------------------------------- pictures


@pytest.fixture
def texts(monkeypatch):
    """What the pictures say, filled as they are drawn."""
    found = []
    original = style.pyplot.Figure.savefig

    def savefig(figure, path):
        found.extend(text.get_text() for text in figure.findobj(style.matplotlib.text.Text))
        original(figure, path)

    monkeypatch.setattr(style.pyplot.Figure, "savefig", savefig)
    return found


def test_drawn_again_from_the_file(data, tmp_path, texts, capsys):
    assert figures.main(["--from", str(a_file(tmp_path, data))]) == 0
    assert (tmp_path / "put_bandwidth-1xH100.png").stat().st_size > 20_000
    assert (tmp_path / "put_rate-1xH100.png").stat().st_size > 20_000
    for text in (
        "put of 2 KiB by each of 64 CTAs: ibgda 65.5 GB/s, ibrc 6.14 GB/s",
        "NVIDIA H100, NIC: softhca, cuda engine, 1024 threads a CTA, commit 012345678901-dirty, 2026-11-21",
        "ibrc: 64 CTAs put 1 times what 1 CTA puts",
        "ibgda: 64 CTAs put 64 times what 1 CTA puts",
        "messages of 64 CTAs that fill 90% of a 25 GB/s link: ibgda 2 KiB, ibrc 8 KiB",
        "scattered p: ibgda 220 M/s with 64 CTAs, 55 times ibrc's 4 M/s",
        "ibgda, coalesced\n32 p in a WQE\n2.4 G/s",
        "ConnectX-6's limit\n215 M/s",
    ):
        assert text in texts
    assert "scattered p, peaks: ibgda's 220 M/s" in capsys.readouterr().out


def test_pictures_of_two_gpus_say_so(data, tmp_path, texts):
    assert figures.main(["--from", str(a_file(tmp_path, data | {"gpus": 2}))]) == 0
    assert sum(text.startswith("2 x NVIDIA H100, NIC: softhca") for text in texts) == 2


def test_the_simulator_is_named_and_not_compared(data, tmp_path, texts):
    data |= {"gpu": None, "machine": "simulator on x86_64 (Linux)"}
    data["runs"] = [run for run in data["runs"] if run["curve"] != LIMITED_PUT]
    pictures.draw_put_bandwidth(data, str(tmp_path / "put.png"))
    pictures.draw_put_rate(data, str(tmp_path / "rate.png"))
    assert len([text for text in texts if text.endswith(" (simulator)")]) == 2
    assert len([text for text in texts if "an interpreter's rates, not hardware's" in text]) == 2
    assert not [text for text in texts if "ConnectX" in text]


@pytest.mark.parametrize("left", [(), (PUT,), (SCATTERED_P,), (LIMITED_PUT,)])
def test_whatever_there_is_is_drawn(data, tmp_path, left):
    """With one transport, one curve, or nothing."""
    for transport in ("ibrc", "ibgda"):
        part = copy.deepcopy(data)
        for run in part["runs"]:
            if run["curve"] not in left or run["transport"] != transport:
                run |= {"succeeded": False, "rows": []}
        assert figures.main(["--from", str(a_file(tmp_path, part))]) == 1
        assert (tmp_path / "put_bandwidth-1xH100.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("text", ["[1]", "{", '{"rows": []}'])
def test_another_file_is_refused(tmp_path, capsys, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SystemExit) as stop:
        figures.main(["--from", str(tmp_path / "x.json")])
    assert stop.value.code == 2
    assert "x.json is no result of make figures" in capsys.readouterr().err


def test_labels_of_close_ends_do_not_overlap(tmp_path):
    with style.picture(str(tmp_path / "x.png"), 6, 4, "", "") as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 1), ylim=(0, 100))
        style.end_labels(axes, [(f"curve {y}", 1, y, "black") for y in (50, 51, 52, 90)])
        boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))
        middle = (boxes[0].y0 + boxes[2].y1) / 2
        assert middle == pytest.approx(axes.transData.transform((1, 51))[1], abs=2)
