"""The perf tests: flags, validation, pictures; kernels and whole runs of put and p."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import forks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import also
from perf_runs import mpirun, with_mpirun

import pgas
from pgas.base import config
from pgas.perftests import compare, shmem_p_bw, shmem_put_bw
from pgas.perftests.harness import counts, jobs, options, payload, peers, plot
from pgas.perftests.harness.grid import Counter
from pgas.perftests.harness.options import Defaults
from pgas.perftests.harness.report import Report, Row
from pgas.perftests.harness.workload import DATATYPES, p_workload, put_workload


def parse(*argv, scopes=("block", "warp", "thread"), defaults=None):
    return options.parse("shmem_put_bw", "A test.", defaults or Defaults("double"), scopes, argv)


# -------------------------------------------------------------------------------------------------------------- options


def test_flags_are_nvshmems():
    found = parse()
    assert (found.min_size, found.max_size, found.step, found.scope, found.datatype) == (4, 4 << 20, 2, "block", "double")
    assert (found.iters, found.warmup_iters, found.ctas, found.threads_per_cta) == (10, 5, 32, 256)
    found = parse(*"-n 200 -w 20 -c 4 -t 1024 -e 32M --bidir --report_msgrate -s warp".split(" "))  # noqa: SIM905
    assert (found.iters, found.warmup_iters, found.ctas, found.threads_per_cta) == (200, 20, 4, 1024)
    assert (found.max_size, found.bidir, found.scope) == (32 << 20, True, "warp")
    assert parse("-i", "8", "-d", "int", scopes=("thread",)).stride == 8


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


names = st.sampled_from(sorted(DATATYPES))


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


@pytest.mark.parametrize(("offset", "where"), [(0, "message"), (5, "gap"), (-256, "guard"), (-1, "guard"), (60, "guard"), (315, "guard")])
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


# ----------------------------------------------------------------------------------------------------- what a card counts

GIVEN = {"wqes": 15, "nbytes": 12288, "doorbells": 6, "cqes": 15, "errors": 0}


@pytest.mark.parametrize(
    ("wrong", "iters", "bounds", "words"),
    [
        ({}, 3, (15, 15), None),
        ({"wqes": 14}, 3, (15, 15), "the software NIC executed 14 WQEs instead of 15 for 12 messages of 12288 bytes"),
        ({"wqes": 16}, 3, (15, 15), "the software NIC executed 16 WQEs instead of 15 for 12 messages of 12288 bytes"),
        ({"nbytes": 12280}, 3, (15, 15), "the software NIC moved 12280 bytes in 15 WQEs for 12 messages of 12288 bytes"),
        ({"doorbells": 0}, 3, (15, 15), "the software NIC observed 0 doorbells for 15 WQEs for 12 messages"),
        ({"doorbells": 16}, 3, (15, 15), "the software NIC observed 16 doorbells for 15 WQEs"),
        ({"errors": 1}, 3, (15, 15), "the software NIC counted 1 errors"),
        ({}, 0, (0, 0), "the software NIC executed 15 WQEs instead of 0 for 0 messages of 0 bytes"),
        (dict.fromkeys(GIVEN, 0), 0, (0, 0), None),
        ({"wqes": 11}, 3, (12, 16), "the software NIC executed 11 WQEs instead of 12 to 16"),
        ({"wqes": 12}, 3, (12, 16), None),
        ({"wqes": 16}, 3, (12, 16), None),
        ({"wqes": 17}, 3, (12, 16), "the software NIC executed 17 WQEs instead of 12 to 16"),
    ],
)
def test_counts_that_are_wrong(wrong, iters, bounds, words):
    issued = counts.Issued(iters * 4, iters * 4096, bounds)
    found = counts.find_fault(GIVEN | wrong, issued)
    assert found is None if words is None else found.startswith(words)


# ------------------------------------------------------------------------------------------------------------- pictures

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


def test_plot_of_two_runs(tmp_path):
    paths = []
    for ctas in (4, 32):
        paths.append(str(tmp_path / f"{ctas}.json"))
        a_report(argv=["-c", str(ctas)]).write_json(paths[-1])
    picture = tmp_path / "both.png"
    assert plot.main([*paths, "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 10_000


#: A run of ep.
EP = {
    "test": "ep", "machine": "box", "gpu": None, "transport": "p2p", "npes": 4,
    "args": {"hidden": 7168, "top_k": 8, "experts": 256, "threads": 512},
    "rows": [
        {"tokens": 128, "dtype": "bf16", "library": library, "sms": sms, "dispatch_us": dispatch, "combine_us": combine, "validated": True}
        for library, sms, dispatch, combine in (("pgas", 32, 32.7, 66.1), ("pgas", 64, 28.1, 1.7), ("NCCL, splits known", None, 64.3, 92.7))
    ],
}  # fmt: skip


def test_plots_of_programs(tmp_path):
    """Bars of a step touch, and no two numbers of their axis do. Times over GPUs are on logarithmic axes."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    runs = [json.loads(path.read_text()) for name in ("jacobi-16384-4x", "overlap-") for path in jobs.BASELINES.glob(f"{name}*H100*.json")]
    runs.append(EP)
    for i, run in enumerate(runs):
        (tmp_path / f"{i}.json").write_text(json.dumps(run))
        assert plot.main([str(tmp_path / f"{i}.json"), "-o", str(tmp_path / f"{i}.png")]) == 0
        assert (tmp_path / f"{i}.png").read_bytes().startswith(b"\x89PNG\r\n")
    _, _, (curves,) = plot._jacobi(runs[0], runs[0]["rows"])
    assert [len(curve.points) for curve in curves.curves] == [3] * 5
    _, _, (bars, _) = plot._overlap(runs[1], runs[1]["rows"])
    assert [bar[::2] for bar in bars.bars[:3]] == [
        ("communication", "NCCL"),
        ("communication", "pgas"),
        ("communication, in chunks", "pgas"),
    ]
    _, _, (experts,) = plot._ep(EP, EP["rows"])
    assert [bar[::2] for bar in experts.bars[1:4]] == [
        ("dispatch", "pgas, 64 blocks"),
        ("dispatch", "NCCL, splits known"),
        ("combine", "pgas, 32 blocks"),
    ]
    figure, axes = pyplot.subplots(figsize=(5, 5))
    plot._draw_bars(axes, bars)
    figure.canvas.draw()
    numbers = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(numbers) > 3
    assert all(left.x1 + 3 < right.x0 for left, right in itertools.pairwise(numbers))
    first, second, third = sorted((patch.get_y(), patch.get_y() + patch.get_height()) for patch in axes.patches)[:3]
    assert first[1] == second[0] < second[1] < third[0]
    pyplot.close(figure)


@pytest.mark.slow
@with_mpirun
def test_host_time_of_calls(tmp_path):
    done = mpirun(2, "-m", "pgas.perftests.host_overhead", "-n", "1", "-b", "1", "--json", tmp_path / "host.json")
    title, columns, *rows = done.stdout.splitlines()
    assert "number of PEs 2, on the simulator: an interpreter's time, transport p2p" in title
    assert columns.split() == ["call", "us", "calls/s"]
    result = json.loads((tmp_path / "host.json").read_text())
    assert [row[:35].strip() for row in rows] == list(result["rows"])
    assert {"numba.cuda launch", "pgas.jit launch", "put", "reduce", "barrier_all"} <= result["rows"].keys()
    assert all(us > 0 for us in result["rows"].values())


@pytest.mark.slow
@with_mpirun
def test_numbers_of_blocks(tmp_path):
    """Every collective with each number of blocks; the last line is a valid PGAS_HOST_BLOCKS."""
    done = mpirun(2, "-m", "pgas.perftests.tune", "-n", "1", "--blocks", "1,3", "-b", "1K", "-e", "1K", "--json", tmp_path / "tune.json")
    title, *tables, last = done.stdout.splitlines()
    assert "int64, number of PEs 2, on the simulator: an interpreter's time, p2p" in title
    assert [line[2:] for line in tables[::3]] == list(config.COLLECTIVES)
    assert {tuple(line.split()) for line in tables[1::3]} == {("size(B)", "1", "3", "blocks")}
    found = json.loads((tmp_path / "tune.json").read_text())["rows"]
    assert [(row["collective"], row["bytes"]) for row in found] == [(name, 1024) for name in config.COLLECTIVES]
    assert all(row["us"].keys() == {"1", "3"} and min(row["us"].values()) > 0 for row in found)
    name, _, value = last.partition("=")
    chosen = config.VARIABLES[name].parse(value)
    assert {row[0] for row in chosen} == set(config.COLLECTIVES)
    assert {row[2] for row in chosen} <= {1, 3}


@with_mpirun
def test_collectives_without_other_libraries(tmp_path):
    done = mpirun(2, "-m", "pgas.perftests.coll_compare", "-n", "1", "--json", tmp_path / "coll.json")
    run = json.loads((tmp_path / "coll.json").read_text())
    assert [row["collective"] for row in run["rows"]] == list(compare.TESTS)
    assert all(row["validated"] and row["pgas"] > 0 and row["floor"] > 0 for row in run["rows"])
    assert run["missing"] == dict.fromkeys(("NCCL", "symmetric memory"), "there is no GPU")
    assert list(compare.table(run)) == done.stdout.splitlines()


def test_packages_that_few_need_are_not_imported():
    """The commands and the perf tests work without those of the extras."""
    program = "import sys, pgas.perftests.compare, pgas.perftests.harness.plot, pgas.perftests.harness.team, pgas.doctor.report\n"
    program += "print({'matplotlib', 'rich', 'pyverbs'} & sys.modules.keys())\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --------------------------------------------------------------------------------- kernels, one PE that sends to itself


@pytest.fixture(scope="module")
def job():
    """A job in this process, with the configuration that the random programs' tests have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGAS_LL_BYTES", "256")
        with pgas.init():
            yield


class Tensor(np.ndarray):
    """What peers.py uses of a PyTorch tensor."""

    fill_ = np.ndarray.fill
    chunk = np.split

    def zero_(self):
        self[...] = 0


def of_torch(one_shot):
    """Return a PyTorch of which every graph takes 12 ms, and its torch.distributed for one PE. one_shot: its reduction."""
    torch, distributed = MagicMock(), MagicMock()
    torch.empty = lambda n, device: np.empty(n, np.float32).view(Tensor)
    torch.cuda.Event.return_value.elapsed_time.return_value = 12.0
    for name in ("all_to_all_single", "all_gather_into_tensor"):
        getattr(distributed, name).side_effect = lambda dest, source: dest.__setitem__(slice(None), source)
    torch.ops.symm_mem.one_shot_all_reduce, torch.ops.symm_mem.two_shot_all_reduce_ = one_shot, lambda source, op, group: source
    memory = MagicMock()
    memory.empty = lambda n, dtype, device: torch.empty(n, device)
    return torch, distributed, memory


@pytest.mark.parametrize("wrong", [False, True])
def test_collectives_of_other_libraries(job, monkeypatch, wrong):
    """The first call of each is checked, and a library whose data is wrong is left out from then on."""
    library = peers.Peers(SimpleNamespace(my_pe=0, n_pes=1))
    assert library.missing == dict.fromkeys(("NCCL", "symmetric memory"), "there is no GPU")
    torch, distributed, memory = of_torch(lambda source, op, group: source + wrong)
    library.missing, library._group, library._torch, library._device, library._stream = {}, distributed, torch, 0, 0
    monkeypatch.setattr(peers, "importlib", SimpleNamespace(import_module=lambda name: memory))
    for name in ("alltoall", "fcollect", "broadcast"):
        assert list(library.measure(name, 64, 3)) == [("NCCL", name, 0.004)]
    reduces = [("NCCL", "reduce", 0.004), ("symmetric memory", "one_shot_all_reduce", 0.004)]
    reduces.append(("symmetric memory", "two_shot_all_reduce_", 0.004))
    assert list(library.measure("reduce", 64, 3)) == reduces[: 1 if wrong else 3]
    assert library.missing == (
        {"symmetric memory": "reduce of 64 B: PE 0: ValueError: a result has other elements than 1"} if wrong else {}
    )
    distributed.reduce_scatter_tensor.side_effect = lambda dest, source: dest.fill(7)
    assert list(library.measure("reducescatter", 64, 3)) == []
    assert library.missing["NCCL"] == "reducescatter of 64 B: PE 0: ValueError: a result has other elements than 1"


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
        also(shmem_put_bw, ["-b", "7", "-e", "4K", "-f", "32", "-s", "warp", "--bidir"], [7, 224]),
        also(shmem_put_bw, ["-e", "4K", "-f", "32", "-s", "thread"], [4, 128, 4096]),
        (shmem_put_bw, ["-b", "64K", "-e", "64K", "-s", "warp", "--smem"], [1 << 16]),
        also(shmem_p_bw, ["-e", "1K", "-f", "7", "-i", "3", "-d", "double"], [4, 28, 196]),
        also(shmem_p_bw, ["-e", "1K", "-f", "32", "--bidir"], [4, 128]),
    ],
)
def test_run_on_two_pes(test, argv, sizes, tmp_path):
    result, picture = tmp_path / "run.json", tmp_path / "run.png"
    few = ["-n", 3, "-w", 1, "-c", 3, "-t", 32]
    done = mpirun(2, Path(test.__file__), *argv, *few, "--json", result, "--plot", picture)
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
    """Each put, and each p that does not coalesce, is a WQE. Over ibgda neighboring p share WQEs."""
    output = tmp_path / "run.json"
    command = ["-m", f"pgas.perftests.{test}", "--transport", transport, "-b", "512", "-e", "2K", "-n", "3", "--json", str(output), *flags]
    done = mpirun(2, *command)
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
def test_demo_prints_two_lines():
    done = mpirun(2, "-m", "pgas.perftests.demo")
    first, second = done.stdout.splitlines()
    assert re.search(r"[\d,]+ threads/s|us per launch", first)
    assert re.search(r"round trip: [\d.]+ us", second)
