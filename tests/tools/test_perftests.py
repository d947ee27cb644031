"""The perf tests: options, division of messages, validation, tables, JSON and plots; kernels and whole runs."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import forks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import also
from perf_runs import mpirun, with_mpirun

import pgas
from pgas.perftests import shmem_p_bw, shmem_put_bw
from pgas.perftests.harness import counts, jobs, options, pair, payload, plot, report
from pgas.perftests.harness.grid import Counter
from pgas.perftests.harness.options import Defaults
from pgas.perftests.harness.report import Report, Row
from pgas.perftests.harness.workload import DATATYPES, element_type, p_workload, put_workload, share


def parse(*argv, scopes=("block", "warp", "thread"), defaults=None):
    return options.parse("shmem_put_bw", "A test.", defaults or Defaults("double"), scopes, argv)


# -------------------------------------------------------------------------------------------------------------- options


def test_defaults_are_nvshmems():
    found = parse()
    assert (found.min_size, found.max_size, found.step) == (4, 4 << 20, 2)
    assert (found.iters, found.warmup_iters, found.ctas, found.threads_per_cta) == (10, 5, 32, 256)
    assert (found.scope, found.stride, found.bidir, found.transport, found.datatype) == (
        "block",
        1,
        False,
        None,
        "double",
    )


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("1k", 1024), ("64M", 64 << 20), ("1T", 1 << 40)])
def test_size_suffixes(text, size):
    assert parse("-e", text).max_size == size
    assert parse("--max_size", text).max_size == size


def test_nvshmems_standard_command_lines():
    found = parse(*"-n 200 -w 20 -c 4 -t 1024 -e 32M --bidir --report_msgrate -s warp".split(" "))  # noqa: SIM905
    assert (found.iters, found.warmup_iters, found.ctas, found.threads_per_cta) == (200, 20, 4, 1024)
    assert (found.max_size, found.bidir, found.scope) == (32 << 20, True, "warp")
    assert parse("-i", "8", "-d", "int", scopes=("thread",)).stride == 8


def test_sizes_of_the_rows():
    assert list(parse("-b", "8", "-e", "100", "-f", "3").sizes()) == [8, 24, 72]
    assert list(parse("-b", "5", "-e", "5").sizes()) == [5]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-c", "0"], ["-c/--ctas", "0 ", "1 to 2147483647"]),
        (["-t", "2048"], ["-t/--threads_per_cta", "2048", "1 to 1024"]),
        (["-n", "many"], ["-n/--iters", "'many' is not an integer", "1 to 2147483647"]),
        (["-w", "-1"], ["-w/--warmup_iters", "-1", "0 to 2147483647"]),
        (["-f", "1"], ["-f/--step", "1 is out of range", "2 to 2147483647"]),
        (["-b", "0"], ["-b/--min_size", "0 is out of range", "1 to 1T"]),
        (["-e", "4q"], ["-e/--max_size", "'4q' is not a size", "1 to 1T"]),
        (["-b", "1k", "-e", "512"], ["-e/--max_size", "512", "1K to 1T"]),
        (["-s", "grid"], ["-s/--scope", "'grid'", "block, warp, thread"]),
        (["-d", "quad"], ["-d/--datatype", "'quad'", "int8", "double"]),
        (["-s", "warp", "-t", "48"], ["-t/--threads_per_cta", "48", "multiple of 32"]),
        (["--transport", "tcp"], ["--transport", "'tcp'", "p2p, ibgda, ibrc"]),
        (["--seed", "-1"], ["--seed", "-1", "0 to"]),
        (["--itres", "3"], ["--itres"]),
    ],
)
def test_bad_value_is_one_sentence_and_status_2(argv, words, capsys, monkeypatch):
    monkeypatch.delenv("PMI_RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        parse(*argv)
    text = capsys.readouterr().err
    assert stop.value.code == 2
    assert text.startswith("shmem_put_bw: error: ")
    assert text.count("\n") == 1
    for word in words:
        assert word in text


@pytest.mark.parametrize(("argv", "status"), [(["-c", "0"], 2), (["--help"], 0)])
def test_only_pe_0_speaks(argv, status, capsys, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit) as stop:
        parse(*argv)
    assert stop.value.code == status
    assert capsys.readouterr() == ("", "")


def test_environment_for_init(monkeypatch):
    monkeypatch.delenv("PGAS_TRANSPORT", raising=False)
    monkeypatch.setenv("PGAS_SYMMETRIC_SIZE", "")  # so that monkeypatch restores it
    monkeypatch.delenv("PGAS_SYMMETRIC_SIZE")
    parse("-e", "1M").set_environment()
    assert "PGAS_TRANSPORT" not in os.environ
    assert "PGAS_SYMMETRIC_SIZE" not in os.environ
    monkeypatch.setenv("PGAS_TRANSPORT", "p2p")
    large = parse("-e", "1G", "-i", "2", "--transport", "ibgda", scopes=("thread",))
    large.set_environment()
    assert os.environ["PGAS_TRANSPORT"] == "ibgda"
    assert int(os.environ["PGAS_SYMMETRIC_SIZE"]) == large.heap_bytes() > 4 << 30
    monkeypatch.setenv("PGAS_SYMMETRIC_SIZE", "8G")
    large.set_environment()
    assert os.environ["PGAS_SYMMETRIC_SIZE"] == "8G"


# ------------------------------------------------------------------------------------------------------------- division

sizes = st.one_of(st.integers(1, 5000), st.integers(1, 1 << 20))
names = st.sampled_from(sorted(DATATYPES))


@given(size=sizes, name=names)
def test_element_type_divides_the_size(size, name):
    found, wanted = element_type(size, name), np.dtype(DATATYPES[name])
    assert size % found.itemsize == 0
    assert found == wanted if size % wanted.itemsize == 0 else found.itemsize < wanted.itemsize


@given(nelems=st.integers(0, 5000), workers=st.integers(1, 300))
def test_shares_are_contiguous_even_and_complete(nelems, workers):
    shares = [share(worker, workers, nelems) for worker in range(workers)]
    assert shares[0][0] == 0
    assert shares[-1][1] == nelems
    assert all(before[1] == after[0] for before, after in itertools.pairwise(shares))
    lengths = [last - first for first, last in shares]
    assert max(lengths) - min(lengths) <= 1


@given(
    size=sizes,
    name=names,
    scope=st.sampled_from(["block", "warp", "thread"]),
    ctas=st.integers(1, 64),
    warps=st.integers(1, 8),
)
def test_put_sends_every_byte_once(size, name, scope, ctas, warps):
    work = put_workload(size, name, scope, ctas, 32 * warps)
    per_cta = {"block": 1, "warp": warps, "thread": 32 * warps}[scope]
    shares = [share(worker, work.ctas * per_cta, work.nelems) for worker in range(work.ctas * per_cta)]
    lengths = [last - first for first, last in shares]
    assert work.nelems * work.dtype.itemsize == size
    assert sum(lengths) == work.nelems
    assert work.messages == sum(length > 0 for length in lengths)
    assert work.message_bytes == max(lengths) * work.dtype.itemsize
    assert work.coalesced is None
    assert work.span == work.nelems
    # Every launched CTA has work. All requested CTAs are launched if each of their workers has an element.
    assert all(any(lengths[cta * per_cta : (cta + 1) * per_cta]) for cta in range(work.ctas))
    assert work.ctas == ctas or work.nelems < ctas * per_cta


@given(size=sizes, name=names, stride=st.integers(1, 9), ctas=st.integers(1, 64), threads=st.integers(1, 256))
def test_p_workload(size, name, stride, ctas, threads):
    work = p_workload(size, name, stride, ctas, threads)
    assert work.messages == work.nelems == size // work.dtype.itemsize
    assert work.message_bytes == work.dtype.itemsize
    assert work.coalesced is (stride == 1)
    assert work.span == stride * (work.nelems - 1) + 1
    assert (work.ctas - 1) * threads < work.nelems
    assert work.ctas == ctas or work.ctas * threads >= work.nelems


# ----------------------------------------------------------------------------------------------------------- validation


def row_images(work, seed=1):
    elements = payload.random_elements(work, seed, 0)
    before, after = (payload.dest_image(work, elements, arrived=arrived) for arrived in (False, True))
    return elements, before, after


@given(size=st.integers(1, 600), name=names, stride=st.integers(1, 5))
def test_images(size, name, stride):
    work = p_workload(size, name, stride, 4, 32)
    elements, before, after = row_images(work)
    guard = payload.GUARD_BYTES // work.dtype.itemsize
    assert payload.GUARD_BYTES >= 64
    assert before.size == after.size == work.span + 2 * guard
    sent = np.zeros(after.size, dtype=bool)
    sent[guard : guard + work.span : stride] = True
    assert after[sent].tobytes() == elements.tobytes() == payload.source_image(work, elements)[::stride].tobytes()
    assert set(after[~sent].tobytes()) == set(before[~sent].tobytes()) == {payload.POISON}
    assert np.all(before[sent].view(np.uint8) != after[sent].view(np.uint8)), "a byte not sent could pass for one sent"
    assert payload.find_fault(work, after.copy(), after) is None


def test_payload_is_fresh_for_each_pe_size_and_seed():
    work = put_workload(4096, "double", "block", 4, 32)
    first = payload.random_elements(work, 1, 0).tobytes()
    assert payload.random_elements(work, 1, 0).tobytes() == first
    assert payload.random_elements(work, 1, 1).tobytes() != first
    assert payload.random_elements(work, 2, 0).tobytes() != first
    larger = put_workload(8192, "double", "block", 4, 32)
    assert payload.random_elements(larger, 1, 0).tobytes()[:4096] != first


@pytest.mark.parametrize(
    ("offset", "where"),
    [(0, "message"), (5, "gap"), (8, "message"), (-1, "guard"), (-256, "guard"), (60, "guard"), (315, "guard")],
)
def test_fault_is_found_and_named(offset, where):
    work = p_workload(32, "int", 2, 1, 32)  # 8 elements with stride 2: bytes 0 to 59
    _, _, after = row_images(work)
    found = after.copy()
    found.view(np.uint8)[offset + payload.GUARD_BYTES] ^= 0x10
    fault = payload.find_fault(work, found, after)
    assert fault is not None
    assert (fault.offset, fault.where, fault.count) == (offset, where, 1)
    assert fault.found == fault.expected ^ 0x10
    assert str(fault).startswith(f"1 wrong byte at offset {offset} ({where}): 0x")


def test_nothing_sent_is_found():
    work = put_workload(100, "char", "block", 4, 32)
    _, before, after = row_images(work)
    fault = payload.find_fault(work, before, after)
    assert fault is not None
    assert (fault.offset, fault.count) == (0, 100)


# ----------------------------------------------------------------------------------------------------- what a card counts


@given(size=st.integers(1, 6000), name=names, ctas=st.integers(1, 5), threads=st.integers(1, 80))
def test_fewest_wqes_of_neighbouring_p(size, name, ctas, threads):
    """In each round every thread sends one element: a WQE for each warp, and a NOP if it takes several WQEBBs."""
    work = p_workload(size, name, 1, ctas, threads)
    fewest = 0
    for row in range(0, work.nelems, work.ctas * work.threads):
        for cta in range(row, min(row + work.ctas * work.threads, work.nelems), work.threads):
            for warp in range(cta, min(cta + work.threads, work.nelems), 32):
                lanes = min(cta + work.threads, work.nelems, warp + 32) - warp
                fewest += 1 if 36 + lanes * work.dtype.itemsize <= 64 else 2
    assert shmem_p_bw.TEST.wqes(work, True) == (fewest, work.nelems)
    assert fewest <= work.nelems


def test_wqes_of_p_that_do_not_coalesce():
    assert shmem_p_bw.TEST.wqes(p_workload(4096, "int", 2, 4, 32), True) == (1024, 1024)
    assert shmem_p_bw.TEST.wqes(p_workload(4096, "int", 1, 4, 32), False) == (1024, 1024)


@pytest.mark.parametrize(
    ("size", "ctas", "wqes"), [(8, 4, 1), (4096, 4, 4), (4 << 30, 4, 4), ((4 << 30) + 8, 4, 5), ((4 << 30) + 40, 4, 8), (3 << 30, 1, 3)]
)
def test_wqes_of_puts(size, ctas, wqes):
    """One for each GiB of a share. In the fourth and fifth case one share, or each, is an element larger than 1 GiB."""
    work = put_workload(size, "double", "block", ctas, 32)
    assert {shmem_put_bw.TEST.wqes(work, coalesces) for coalesces in (False, True)} == {(wqes, wqes)}


GIVEN = {"wqes": 15, "nbytes": 12288, "doorbells": 6, "cqes": 15, "errors": 0}


@pytest.mark.parametrize(
    ("wrong", "iters", "words"),
    [
        ({}, 3, None),
        ({"wqes": 14}, 3, "the card executed 14 WQEs instead of 15 for 12 messages of 12288 bytes"),
        ({"wqes": 16}, 3, "the card executed 16 WQEs instead of 15 for 12 messages of 12288 bytes"),
        ({"nbytes": 12280}, 3, "the card moved 12280 bytes in 15 WQEs for 12 messages of 12288 bytes"),
        ({"doorbells": 0}, 3, "the card saw 0 doorbells for 15 WQEs for 12 messages"),
        ({"doorbells": 16}, 3, "the card saw 16 doorbells for 15 WQEs"),
        ({"errors": 1}, 3, "the card counted 1 errors"),
        ({}, 0, "the card executed 15 WQEs instead of 0 for 0 messages of 0 bytes"),
        (dict.fromkeys(GIVEN, 0), 0, None),
    ],
)
def test_counts_that_are_wrong(wrong, iters, words):
    issued = counts.Issued(iters * 4, iters * 4096, (iters * 5, iters * 5))
    found = counts.find_fault(GIVEN | wrong, issued)
    assert found is None if words is None else found.startswith(words)


def test_counts_between_bounds():
    issued = counts.Issued(3072, 12288, (192, 3072))
    found = [counts.find_fault(GIVEN | {"wqes": count}, issued) for count in (191, 192, 3072, 3073)]
    assert found[1] == found[2] is None
    assert found[0].startswith("the card executed 191 WQEs instead of 192 to 3072")
    assert found[3].startswith("the card executed 3073 WQEs instead of 192 to 3072")


# ------------------------------------------------------------------------------------------------------- table and JSON

ROW = Row(
    size=4096, message_bytes=1024, ctas=4, threads=32, scope="block", stride=1, coalesced=None, datatype="float64",
    bw_gbps=1.25, latency_us=None, mops=0.5, messages=4, wqes=None, doorbells=None, validated=True,
)  # fmt: skip


def a_report(**changes):
    rows = [replace(ROW, size=size, bw_gbps=size / 1e6) for size in (4, 64, 1024, 65536)]
    args = asdict(parse(*changes.pop("argv", [])))
    fields_of_a_run = {
        "test": "shmem_put_bw", "machine": "box", "gpu": None, "commit": None, "command": "mpirun -n 2 shmem_put_bw",
        "date": "2026-11-21T12:00:00+00:00", "transport": "p2p", "adapter": None, "engine": None, "npes": 2,
        "versions": {}, "args": args, "rows": rows,
    }  # fmt: skip
    return Report(**(fields_of_a_run | changes))


def test_table_text():
    assert report.header_lines() == ["size(B)     scope     BW (GB/sec)     msgrate (MMPS)  ctas  type     validated"]
    assert report.row_line(ROW) == "4096        block     1.250000        0.500000        4     float64  yes"


def test_table_text_of_a_nic():
    (names,) = report.header_lines(nic=True)
    line = report.row_line(replace(ROW, messages=20, wqes=12, doorbells=3))
    assert names.split()[-4:] == ["validated", "messages", "wqes", "doorbells"]
    assert line.split()[-4:] == ["yes", "20", "12", "3"]
    assert [line.index(cell) for cell in ("yes", "20 ", "12 ")] == [names.index(name) for name in ("validated", "messages", "wqes")]


def test_no_rate_for_data_that_did_not_arrive():
    line = report.row_line(replace(ROW, bw_gbps=None, mops=None, validated=False))
    assert line.split() == ["4096", "block", "-", "-", "4", "float64", "NO"]


def test_titles():
    assert report.title_lines(a_report(), False)[-2] == "#shmem_put_bw_uni"
    assert report.title_lines(a_report(argv=["--bidir"]), False)[-2] == "#shmem_put_bw_bidi"
    assert report.title_lines(a_report(test="shmem_p_bw"), False)[-2] == "#shmem_p_bw"
    text = "\n".join(report.title_lines(a_report(adapter="soft", engine="cpu"), True))
    for word in ("2 PEs on box", "transport p2p", "adapter soft", "engine cpu", "2026-11-21", "interpreter"):
        assert word in text
    assert "interpret" not in "\n".join(report.title_lines(a_report(gpu="NVIDIA H200"), False))


@pytest.mark.parametrize(("has_proxy", "cpus", "shared"), [(True, 1, True), (True, 2, False), (False, 1, False), (True, None, False)])
def test_a_proxy_thread_without_a_cpu_of_its_own_is_noted(has_proxy, cpus, shared):
    assert ("its proxy thread shares" in "\n".join(report.title_lines(a_report(cpus=cpus), False, has_proxy=has_proxy))) == shared


def test_json_schema(tmp_path):
    path = tmp_path / "run.json"
    a_report().write_json(str(path))
    found = json.loads(path.read_text())
    assert set(found) >= {
        "test", "machine", "commit", "command", "date", "transport", "adapter", "engine", "npes", "args", "rows"
    }  # fmt: skip
    assert set(found["args"]) == {field.name for field in fields(options.Options)}
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert set(row) >= {
            "size", "message_bytes", "ctas", "threads", "scope", "stride", "coalesced", "bw_gbps", "latency_us", "mops",
            "messages", "wqes", "doorbells", "validated",
        }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- plots


def test_plot_of_two_runs(tmp_path):
    paths = []
    for ctas in (4, 32):
        paths.append(str(tmp_path / f"{ctas}.json"))
        a_report(argv=["-c", str(ctas)]).write_json(paths[-1])
    picture = tmp_path / "both.png"
    assert plot.main([*paths, "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 10_000


def test_plot_without_matplotlib(tmp_path, monkeypatch, capsys):
    """One sentence says how to install it, before anything is measured."""
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    why = "pictures need matplotlib: pip install 'pgas[plot]'"
    with pytest.raises(SystemExit) as ended:
        plot.main(["x.json", "-o", str(tmp_path / "x.png")])
    assert (ended.value.code, capsys.readouterr().err.splitlines()[-1]) == (2, f"python -m pgas.perftests.plot: error: {why}")
    asked = SimpleNamespace(json=None, plot=str(tmp_path / "x.png"))
    assert pair.unwritable(asked) == f"argument --plot: {why}"


@with_mpirun
def test_host_time_of_calls(tmp_path):
    done = mpirun(2, "-m", "pgas.perftests.host_overhead", "-n", "1", "-b", "1", "--json", tmp_path / "host.json")
    assert done.returncode == 0, done.stderr
    title, columns, *rows = done.stdout.splitlines()
    assert "number of PEs 2, on the simulator: an interpreter's time, transport p2p" in title
    assert columns.split() == ["call", "us", "calls/s"]
    result = json.loads((tmp_path / "host.json").read_text())
    assert [row[:35].strip() for row in rows] == list(result["rows"])
    assert {"numba.cuda launch", "pgas.jit launch", "put", "reduce", "barrier_all"} <= result["rows"].keys()
    assert all(us > 0 for us in result["rows"].values())


def test_packages_that_few_need_are_not_imported():
    """The commands and the perf tests work without those of the extras."""
    program = "import sys, pgas.perftests.compare, pgas.perftests.harness.plot, pgas.perftests.harness.team, pgas.doctor.report\n"
    program += "print({'matplotlib', 'rich', 'pyverbs'} & sys.modules.keys())\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("rows_too", [False, True])
def test_progress_is_counted_on_a_terminal(monkeypatch, rows_too):
    """Unless the rows go there, too."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal() if rows_too else io.StringIO())
    with pair.progress("put", 2, shown=True) as advance:
        advance()
        advance()
    counted = "".join(f"\r\x1b[Kput: {done} of 2" for done in range(3)) + "\r\x1b[K"
    assert sys.stderr.getvalue() == ("" if rows_too else counted)


def test_plot_says_what_ran_where():
    runs = [asdict(a_report(argv=["-c", "4"])), asdict(a_report(argv=["-c", "32"]))]
    shared, labels = plot._told_apart([plot._traits(run, "block", None) for run in runs])
    assert labels == ["4 CTAs", "32 CTAs"]
    assert {"p2p", "2026-11-21", "256 threads per CTA"} <= {*shared}


def test_plot_without_any_valid_row(tmp_path):
    failed = a_report(rows=[replace(ROW, bw_gbps=None, mops=None, validated=False)])
    plot.draw([asdict(failed)], str(tmp_path / "none.png"))
    assert (tmp_path / "none.png").exists()


def test_plot_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(SystemExit) as stop:
        plot.main([str(tmp_path / "x.json"), "-o", str(tmp_path / "x.png")])
    assert stop.value.code == 2
    assert "x.json is not a result of a perf test" in capsys.readouterr().err


# --------------------------------------------------------------------------------- kernels, one PE that sends to itself


@pytest.fixture(scope="module")
def job():
    """A job in this process, with the configuration that the random programs' tests have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGAS_LL_BYTES", "256")
        with pgas.init():
            yield


def send_to_self(kernel, work, extra=(), iters=2):
    """Run one row with this PE as its own peer; return its fault."""
    elements, before, after = row_images(work)
    guard = payload.GUARD_BYTES // work.dtype.itemsize
    source, dest, counter = pgas.array(payload.source_image(work, elements)), pgas.array(before), Counter()
    target = dest[guard : guard + work.span]
    for launch in range(2):  # The second launch continues with the counter of the first.
        start = counter.reserve(work.ctas * iters)
        assert start == launch * work.ctas * iters
        arguments = (target, source, *extra, counter.array, start, iters, pgas.my_pe())
        pgas.launch(kernel, work.ctas, work.threads, arguments)
        pgas.synchronize()
    fault = payload.find_fault(work, dest.copy_to_host(), after)
    counter.free()
    pgas.free(dest)
    pgas.free(source)
    return fault


@pytest.mark.parametrize("scope", ["block", "warp", "thread"])
@settings(max_examples=15)
@given(size=st.integers(1, 3000), name=st.sampled_from(["double", "float", "fp16", "char"]), ctas=st.integers(1, 4))
def test_put_kernels_send_everything(job, scope, size, name, ctas):
    work = put_workload(size, name, scope, ctas, 32)
    assert send_to_self(shmem_put_bw.TEST.kernels[scope], work) is None


@settings(max_examples=30)
@given(
    size=st.integers(1, 1500),
    name=st.sampled_from(["double", "int", "short", "char"]),
    stride=st.integers(1, 5),
    ctas=st.integers(1, 4),
    threads=st.integers(1, 40),
)
def test_p_kernel_sends_everything(job, size, name, stride, ctas, threads):
    work = p_workload(size, name, stride, ctas, threads)
    assert send_to_self(shmem_p_bw.p_bw, work, (np.uint64(stride),)) is None


@pytest.mark.skipif(not pgas.SIMULATOR, reason="needs the simulator: device code on a GPU cannot be watched")
@settings(max_examples=20)
@given(nelems=st.integers(1, 300), stride=st.integers(1, 5), ctas=st.integers(1, 3), threads=st.integers(1, 20))
def test_p_kernel_sends_each_element_once(job, nelems, stride, ctas, threads):
    work = p_workload(4 * nelems, "int", stride, ctas, threads)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgas, "p", lambda dest, idx, value, pe: calls.append(int(idx)))
        send_to_self(shmem_p_bw.p_bw, work, (np.uint64(stride),), iters=1)
    launches = 2
    assert sorted(calls) == sorted(launches * [element * stride for element in range(nelems)])


BUILD_FOR_A_GPU = """
from numba.cuda import types
from pgas import sass
from pgas.perftests import demo, shmem_atomic_bw, shmem_p_bw
from pgas.perftests.harness import pair, timing
from point_to_point import TESTS

def array(dtype):
    return types.Array(dtype, 1, "C")

i64, u64 = types.int64, types.uint64
tail = (array(u64), i64, i64, i64)
kernels = {"empty": (demo.empty, ()), "ping_pong": (demo.ping_pong, (array(types.float64), array(u64), i64, i64))}
for test in TESTS:
    dtype = u64 if test.defaults.atomic_op else types.int32
    buffers = [array(dtype), array(dtype)]
    if test.defaults.atomic_op:
        buffers.append(array(u64))
    if test.pattern is pair.Pattern.PING_PONG:
        buffers += [array(i64), i64]
    extra = (u64,) if test.extra is shmem_p_bw.TEST.extra else ()
    scopes = ("inc", "compare_swap") if test is shmem_atomic_bw.TEST else list(test.kernels)[:1]
    kernels |= {f"{test.name} {scope}": (test.kernels[scope], (*buffers, *extra, *tail)) for scope in scopes}
kernels = {name: (kernel.__wrapped__, arguments) for name, (kernel, arguments) in kernels.items()}
kernels["lead_in"] = (timing.lead_in.py_func, (i64, i64))
for name, built in sass.build_all(kernels).items():
    assert (built.spills, built.stack) == (0, 0), name
for dtype in (types.int8, types.float16, types.int32, types.float64):
    built = sass.build(shmem_p_bw.p_bw.__wrapped__, (array(dtype), array(dtype), u64, *tail))
    opcodes = [built.opcode(instruction) for instruction in built.instructions]
    moves = [code[:3] for code in opcodes if code.startswith(("LDG", "STG"))]
    print(dtype, built.spills, built.count("CALL"), *moves)
"""


@pytest.mark.sass
def test_kernels_compile_for_a_gpu():
    """In a separate process, as this one may have the simulator. The p loop loads two elements before it stores one."""
    paths = os.pathsep.join([str(Path(forks.__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", BUILD_FOR_A_GPU], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["int8", "float16", "int32", "float64"]
    assert all(line.split()[1:3] == ["0", "0"] for line in lines)
    assert all("LDG LDG STG STG" in line for line in lines)


# ----------------------------------------------------------------------------------------------------------- whole runs


@with_mpirun
@pytest.mark.parametrize("test", ["shmem_put_bw", also("shmem_p_bw")])
def test_rows_of_a_near_pe_and_of_a_far_one(test, tmp_path):
    """In a job with two paths; near rows make no WQEs, and both are checked."""
    flags = ["--transport", "p2p,ibgda", "-b", "512", "-e", "1K", "-n", "2", "-w", "1", "--json", str(tmp_path / "rows")]
    done = mpirun(3, "-m", f"pgas.perftests.{test}", *flags, PGAS_PES_PER_NODE="2,1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    near, far = lines.index("# near: PE 0 and PE 1, p2p"), lines.index("# far: PE 0 and PE 2, ibgda")
    assert (far - near, len(lines) - far) == (3, 3)
    rows = json.loads((tmp_path / "rows").read_text())["rows"]
    assert [(row["path"], row["size"], row["validated"]) for row in rows] == [
        (path, size, True) for path in ("p2p", "ibgda") for size in (512, 1024)
    ]
    assert [row["wqes"] > 0 for row in rows] == [False, False, True, True]


@with_mpirun
@pytest.mark.parametrize(
    ("test", "argv", "sizes"),
    [
        (shmem_put_bw, ["-b", "4", "-e", "20K", "-f", "5"], [4, 20, 100, 500, 2500, 12500]),
        (shmem_put_bw, ["-b", "7", "-e", "4K", "-f", "32", "-s", "warp", "--bidir"], [7, 224]),
        also(shmem_put_bw, ["-e", "4K", "-f", "32", "-s", "thread"], [4, 128, 4096]),
        (shmem_p_bw, ["-e", "1K", "-f", "7", "-i", "3", "-d", "double"], [4, 28, 196]),
        also(shmem_p_bw, ["-e", "1K", "-f", "32", "--bidir"], [4, 128]),
    ],
)
def test_run_on_two_pes(test, argv, sizes, tmp_path):
    result, picture = tmp_path / "run.json", tmp_path / "run.png"
    few = ["-n", 3, "-w", 1, "-c", 3, "-t", 32]
    done = mpirun(2, Path(test.__file__), *argv, *few, "--json", result, "--plot", picture)
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    rows = found["rows"]
    assert found["test"] == test.TEST.name
    assert found["npes"] == 2
    assert f" {test.TEST.name} {argv[0]}" in found["command"]
    assert [row["size"] for row in rows] == sizes
    assert all(row["validated"] and row["bw_gbps"] > 0 and row["mops"] > 0 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = [line.split() for line in done.stdout.splitlines() if re.match(r"\d", line)]
    assert [int(cells[0]) for cells in printed] == [row["size"] for row in rows]
    assert all(cells[-3:] == ["yes", "#", "interpreter"] for cells in printed)


@pytest.mark.parametrize(
    ("variables", "there", "command"),
    [
        ({"PMI_RANK": "0"}, False, "mpirun -n 2 shmem_p_bw -i 2"),
        (
            {"PGAS_LAUNCHED": '{"rank": 0, "size": 2, "host": "", "port": 1, "secret": "", "word": []}'},
            True,
            "python -m pgas.run -n 2 shmem_p_bw -i 2",
        ),
        ({}, True, "mpirun -n 2 shmem_p_bw -i 2"),
        ({}, False, "python -m pgas.run -n 2 shmem_p_bw -i 2"),
    ],
)
def test_the_command_that_repeats_a_run(variables, there, command, monkeypatch):
    monkeypatch.setattr(jobs.shutil, "which", lambda name: name if there else None)
    for name in [name for name in os.environ if name.startswith(("PMI", "SLURM_", "OMPI_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert report.command_text(2, "shmem_p_bw", ["-i", "2"]) == command


@with_mpirun
@pytest.mark.parametrize("npes", [1, 3])
def test_wrong_number_of_pes(npes):
    done = mpirun(npes, "-m", "pgas.perftests.shmem_put_bw")
    assert done.returncode == 2
    assert "shmem_put_bw: error: needs exactly 2 PEs" in done.stderr
    assert "start it with: mpirun -n 2 shmem_put_bw\n" in done.stderr
    assert done.stderr.count("error:") == 1


@with_mpirun
def test_bad_value_on_two_pes():
    done = mpirun(2, "-m", "pgas.perftests.shmem_p_bw", "-i", "0")
    assert done.returncode == 2
    sentence = "shmem_p_bw: error: argument -i/--stride: 0 is out of range; it must be 1 to 2147483647"
    assert done.stderr.count(sentence) == 1


@with_mpirun
def test_file_that_cannot_be_written(tmp_path):
    done = mpirun(2, "-m", "pgas.perftests.shmem_put_bw", "--json", tmp_path / "none" / "x.json")
    assert done.returncode == 2
    assert done.stderr.count("shmem_put_bw: error: argument --json: ") == 1


@with_mpirun
@pytest.mark.parametrize(
    ("transport", "test", "flags"),
    [
        ("ibgda", "shmem_put_bw", ("--bidir",)),
        also("ibgda", "shmem_p_bw", ("-i", "2")),
        also("ibgda", "shmem_p_bw", ()),
        also("ibrc", "shmem_put_bw", ()),
        ("ibrc", "shmem_p_bw", ()),
    ],
)
def test_the_nic_counts_the_messages(tmp_path, transport, test, flags):
    """Each put, and each p that does not coalesce, is a WQE. Over ibgda neighbouring p share WQEs."""
    output = tmp_path / "run.json"
    command = ["-m", f"pgas.perftests.{test}", "--transport", transport, "-b", "512", "-e", "2K", "-n", "3", "--json", str(output), *flags]
    done = mpirun(2, *command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^size\(B\).*validated +messages +wqes +doorbells$", done.stdout, re.MULTILINE)
    result = json.loads(output.read_text())
    assert (result["transport"], result["adapter"], result["engine"]) == (transport, "softhca", "cpu")
    for row in result["rows"]:
        assert row["validated"]
        assert row["messages"] == 3 * (row["ctas"] if test == "shmem_put_bw" else row["size"] // 4), row
        if transport == "ibgda" and row["coalesced"]:
            assert row["wqes"] < row["messages"], row
        else:
            assert row["wqes"] == row["messages"], row
        assert 1 <= row["doorbells"] <= row["wqes"], row


@with_mpirun
def test_heap_that_is_too_small():
    done = mpirun(2, "-m", "pgas.perftests.shmem_put_bw", "-b", "1M", "-e", "4M", PGAS_SYMMETRIC_SIZE="3M", PGAS_MAX_MEMORY_PER_GPU="3M")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "shmem_put_bw: error: argument -e/--max_size: 4M needs 8389120 bytes of symmetric heap on each PE, which may have 4194304\n"
    )


# Not a multiple of 1024, which would be printed with the suffix K.
A_FIFTH = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 5 // 1024 * 1024 + 8


@with_mpirun
@pytest.mark.parametrize(
    ("size", "refusal"),
    [
        ("1T", "1T: PGAS_SYMMETRIC_SIZE=2 TiB: the heaps of PEs 0, 1 take "),
        (
            A_FIFTH,
            f"{A_FIFTH} needs {6 * (2 * (A_FIFTH) + 512)} bytes of this machine's memory for its data and the checks, and",
        ),
    ],
)
def test_sizes_larger_than_the_machine(size, refusal):
    """Refused before memory is allocated: by init, or after it, as a heap of the simulator takes memory only when touched."""
    done = mpirun(2, "-m", "pgas.perftests.shmem_put_bw", "-b", "1M", "-e", size)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"shmem_put_bw: error: argument -e/--max_size: {refusal}")
    assert done.stderr.count("\n") == 1


@with_mpirun
def test_row_that_loses_an_element(tmp_path):
    """If the kernel omits the first element of a message, the row fails and has no rate, and the exit status is 1."""
    program = tmp_path / "forgetful.py"
    program.write_text(
        "import sys\nfrom dataclasses import replace\nimport pgas\n"
        "from pgas.perftests import shmem_put_bw\nfrom pgas.perftests.harness import pair\n\n"
        "@pgas.jit\n"
        "def forgetful(dest, source, counter, start, iters, pe):\n"
        "    pgas.put_block(dest[1:], source[1:], pe)\n\n"
        "test = replace(shmem_put_bw.TEST, name='forgetful', kernels={'block': forgetful})\n"
        "sys.exit(pair.run(test))\n"
    )
    done = mpirun(2, program, "-b", "1K", "-e", "1K", "-c", "1", "--json", tmp_path / "run.json")
    assert done.returncode == 1
    assert "forgetful: error: size 1024: PE 1: 8 wrong bytes, the first at offset 0 (message): 0x" in done.stderr
    (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert row["validated"] is False
    assert row["bw_gbps"] is None


@with_mpirun
def test_row_that_sends_twice(tmp_path):
    """The data is right, but the card has counted a WQE too many for each put."""
    program = tmp_path / "twice.py"
    program.write_text(
        "import sys\nfrom dataclasses import replace\nimport pgas\n"
        "from pgas.perftests import shmem_put_bw\nfrom pgas.perftests.harness import pair\n\n"
        "@pgas.jit\n"
        "def twice(dest, source, counter, start, iters, pe):\n"
        "    for i in range(2 * iters):\n"
        "        pgas.put_block(dest, source, pe)\n\n"
        "test = replace(shmem_put_bw.TEST, name='twice', kernels={'block': twice})\n"
        "sys.exit(pair.run(test))\n"
    )
    done = mpirun(2, program, "-b", "1K", "-e", "1K", "-c", "1", "-n", "3", "--transport", "ibgda")
    assert done.returncode == 1
    assert "twice: error: size 1024: PE 0: the card executed 6 WQEs instead of 3 for 3 messages of 3072 bytes" in done.stderr
    assert re.search(r"^1024 +block +- +- +1 +float64 +NO +3 +6 +\d+  # interpreter$", done.stdout, re.MULTILINE)


@with_mpirun
def test_demo_prints_two_lines():
    done = mpirun(2, "-m", "pgas.perftests.demo")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.search(r"[\d,]+ threads/s|us per launch", first)
    assert re.search(r"round trip: [\d.]+ us", second)
