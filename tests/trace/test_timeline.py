"""Timelines of jobs (PGAS_TRACE=timeline): the JSON is read back, and has what the programs did."""

import json
import os
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from types import SimpleNamespace

import pytest
from jobs import also
from jobs import job as job
from jobs import real_job as real_job
from written import SIGNAL, WrittenPE

from pgas.base import events, parameters
from pgas.base.errors import PgasError, TransportError
from pgas.job.timeline import Timeline
from pgas.kernels import window
from pgas.trace import chrome, flows
from pgas.trace.command import summary
from pgas.trace.reading import _records, files, read

#: Puts of every kind around a ring, each size only once. The waits are for signals of the left neighbor.
RING = """
@pgas.jit
def around(data, inbox, sig, right, turn):
    i = cuda.threadIdx.x
    pgas.put_signal_block(inbox, data[:40], sig, 0, turn, pgas.SIGNAL_SET, right)
    if i == 0:
        pgas.signal_wait_until(sig, 0, pgas.GE, turn)
        pgas.put(inbox, data, right, 24)
        pgas.put_nbi(inbox, data[:16], right)
        pgas.iput(inbox, data, 2, 2, right, 6)
        pgas.p(inbox, 3, 1.5, right)
        pgas.fence()
        pgas.signal_op(sig, 1, turn, pgas.SIGNAL_SET, right)
        pgas.wait_until(sig, 1, pgas.GE, turn)
        pgas.atomic_add(sig, 2, 1, right)
        pgas.get(inbox, data, right, 12)
    cuda.syncthreads()
    pgas.put_warp(inbox, data[:8], right)
    pgas.barrier_all_block()

with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    data, inbox, sig = pgas.ones(64), pgas.zeros(64), pgas.zeros(4, np.uint64)
    for turn in (1, 2):
        pgas.launch(around, 1, 32, (data, inbox, sig, (me + 1) % n, turn))
        pgas.synchronize()
"""

#: By title, bytes of each call of RING that sends.
SENT = {"put_signal_block": 320, "put": 192, "put_nbi": 128, "iput": 48, "p": 8, "signal_op": 8, "atomic_add": 8, "put_warp": 64}


def traced(job, tmp_path, text, npes=2, **variables):
    ended = job(text, npes=npes, PGAS_TRACE=f"timeline:{tmp_path}/t", **variables)
    assert ended.status == 0, ended
    return read([f"{tmp_path}/t"])


def of_phase(rendered, phase):
    return [event for event in rendered["traceEvents"] if event["ph"] == phase]


def check_flows(rendered):
    """Check that every flow begins, ends once, and goes forward; return its steps by number."""
    steps = defaultdict(list)
    for event in rendered["traceEvents"]:
        if event["ph"] in "stf":
            steps[event["id"]].append(event)
    slices = defaultdict(list)
    for event in of_phase(rendered, "X"):
        slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for flow in steps.values():
        phases = "".join(step["ph"] for step in flow)
        assert re.fullmatch("st*f", phases), flow
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(flow)), flow
        for step in flow:  # Perfetto drops a step that is in no slice.
            assert any(begin <= step["ts"] < end for begin, end in slices[step["pid"], step["tid"]]), step
    return steps


def check_tracks(rendered):
    """Check that slices of a track do not overlap, unless one is within the other."""
    tracks = defaultdict(list)
    for event in of_phase(rendered, "X"):
        assert event["dur"] > 0 <= event["ts"]
        tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        open_until = []
        for begin, length in sorted(slices):
            while open_until and open_until[-1] <= begin + 1e-9:
                open_until.pop()
            assert not open_until or begin - length <= open_until[-1] + 1e-6
            open_until.append(begin - length)


def check_ring(trace, npes):
    rendered = json.loads(json.dumps(chrome.render(trace)))
    calls = [e for e in of_phase(rendered, "X") if e["cat"] == "call"]
    sent = Counter((e["pid"] - 1, e["name"].split()[0], e["args"]["bytes"], e["args"]["peer"]) for e in calls if "peer" in e["args"])
    once = {(pe, name, nbytes, (pe + 1) % npes) for pe in range(npes) for name, nbytes in SENT.items()}
    once |= {(pe, "get", 96, (pe + 1) % npes) for pe in range(npes)}
    assert sent == Counter(dict.fromkeys(once, 2))  # two turns
    assert {e["args"]["name"] for e in of_phase(rendered, "M") if e["name"] == "process_name"} == {
        f"PE {pe} ({trace.pes[pe].job['transport']}, the simulator, {trace.pes[pe].job['machine']})" for pe in range(npes)
    }
    # Every wait was ended by a call of the left neighbor, and the flow from there ends in it.
    waits = [e for e in of_phase(rendered, "X") if e["cat"] == "wait"]
    assert len(waits) == npes * 4
    for wait in waits:
        left = (wait["pid"] - 2) % npes
        assert re.match(rf"(put_signal_block|signal_op) of PE {left}, block 0", wait["args"]["ended by"]), wait
    flows = check_flows(rendered)
    ends = {(flow[-1]["pid"], flow[-1]["tid"], flow[-1]["ts"]) for flow in flows.values()}
    assert all(any(p == w["pid"] and t == w["tid"] and w["ts"] <= at < w["ts"] + w["dur"] for p, t, at in ends) for w in waits)
    # Each of 8 operations of a turn arrives; of the barrier, all but the last to come are released.
    assert len(flows) == npes * 2 * len(SENT) + 2 * (npes - 1)
    check_tracks(rendered)
    for counter, unit in (("bytes in flight", "bytes"), ("outstanding posts", "posts")):
        values = [e["args"][unit] for e in of_phase(rendered, "C") if e["name"] == counter]
        assert not values or (values[-1], min(values)) == (0, 0), counter
    assert [e["args"]["bytes"] for e in of_phase(rendered, "C") if e["name"] == "bytes in flight"][-1] == 0
    kernels = {e["name"] for e in of_phase(rendered, "X") if e["cat"] in ("kernel", "launch")}
    assert kernels == {"around[1, 32]"}
    return rendered


@pytest.mark.parametrize("npes", [2, also(4)])
def test_ring(job, tmp_path, npes):
    trace = traced(job, tmp_path, RING, npes, PGAS_TRANSPORT="p2p")
    check_ring(trace, npes)
    assert len(list(summary(trace))) == 1  # nothing was lost, and the clock is the same


@pytest.mark.parametrize(
    ("transport", "npes", "variables"),
    [
        ("ibgda", 2, {}),
        ("ibrc", 2, {}),
        also("ibgda", 2, {"PGAS_ENGINE": "cuda"}),
        also("ibgda", 4, {}),
        also("ibrc", 4, {}),
        also("p2p,ibgda", 4, {"PGAS_PES_PER_NODE": "2"}),
        also("p2p,ibrc", 4, {"PGAS_PES_PER_NODE": "2"}),
    ],
)
def test_ring_through_a_nic(job, tmp_path, transport, npes, variables):
    """Each operation through the NIC has a post that passes all stages in order, and the flow passes through it."""
    trace = traced(job, tmp_path, RING, npes, PGAS_TRANSPORT=transport, **variables)
    rendered = check_ring(trace, npes)
    found = flows.of(trace)
    writes = [e for e in trace.events() if flows.is_write(e)]
    by_nic = [e for e in writes if e.peer not in trace.pes[e.pe].job["near"] or flows.is_atomic(e)]
    assert len(by_nic) == (npes * 2 * len(SENT) if "," not in transport else 2 * (2 * len(SENT) + 2))
    for write in by_nic:
        posts = found.posts_of[id(write)]
        assert posts, write
        for post in posts:
            stages = [
                post.written,
                *([post.posted] if transport.endswith("ibrc") else []),
                post.rung,
                post.fetched,
                post.executed,
                post.seen,
            ]
            assert None not in stages, post
            assert stages == sorted(stages), post
            assert post.queue // 2 == write.peer
    assert {id(post.call) for post in found.posts} >= {id(write) for write in by_nic}
    through = [flow for flow in check_flows(rendered).values() if flow[0]["ph"] == "s" and len(flow) >= 4]
    assert len(through) == len(by_nic)


def test_overwritten_events_are_counted(job, tmp_path):
    text = """
@pgas.jit
def many(data, pe):
    for i in range(100):
        pgas.p(data, i, i, pe)

with pgas.init():
    data = pgas.zeros(100, np.int32)
    many[1, 1](data, 0)
    pgas.synchronize()
"""
    trace = traced(job, tmp_path, text, 1, PGAS_TRACE_EVENTS="64")
    assert trace.pes[0].lost == {events.BLOCKS: 36}
    assert [e.value for e in trace.events() if e.name == "p"] == list(range(36, 100))
    lost = "the oldest {} events were overwritten, of {} (PE {}); set PGAS_TRACE_EVENTS to a larger number"
    assert list(summary(trace))[-1] == lost.format(36, "1 block", "0")
    trace.pes[0].lost |= {events.BLOCKS + 1: 4, events.HOST: 3}
    assert list(summary(trace))[-1] == lost.format(43, "the host, 2 blocks", "0")


def test_concurrent_calls_of_many_threads_are_one(tmp_path):
    """A fence in every thread of a block would take a track per thread. Calls that move data are one slice each."""
    zero = WrittenPE(tmp_path / "t", 0, n_pes=1)
    for turn in (0, 100):
        for thread in range(10):
            zero.call("put", 10 + turn, 12 + turn, thread=thread, peer=0, address=SIGNAL + 8 * thread, nbytes=8)
            zero.call("fence", 20 + turn + thread / 10, 30 + turn, thread=thread)
            zero.call("signal_wait_until", 40 + turn, 50 + turn + thread, thread=thread, address=SIGNAL, value=7, comparison=5)
    zero.call("fence", 300, 301)
    zero.file.close()
    slices = [event for event in of_phase(chrome.render(read([str(tmp_path / "t.0")])), "X") if event["cat"] in ("call", "wait")]
    assert Counter((event["name"], event["args"].get("threads")) for event in slices) == {
        ("put 8 bytes to PE 0", None): 20, ("fence by 10 threads", 10): 2, ("signal_wait_until by 10 threads", 10): 2, ("fence", None): 1
    }  # fmt: skip
    assert [event["dur"] for event in slices if "threads" in event["args"]] == [10, 19, 10, 19]


def test_a_killed_job_keeps_what_it_wrote(job, tmp_path):
    text = """
@pgas.jit
def work(data, pe, turn):
    pgas.put(data, data, pe, turn)

pgas.init()
data = pgas.zeros(8, np.int32)
for turn in range(1, 6):
    work[1, 1](data, 0, turn)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = job(text, npes=1, PGAS_TRACE=f"timeline:{tmp_path}/t")
    assert ended.status != 0
    trace = read([f"{tmp_path}/t"])
    assert [e.nbytes for e in trace.events() if e.name == "put"] == [4, 8, 12, 16, 20]
    assert [e.name for e in trace.events() if e.code == events.LAUNCHED] == ["work[1, 1]"] * 5


@pytest.mark.slow
def test_a_killed_pe_leaves_the_traces_of_all(real_job, tmp_path):
    text = """
@pgas.jit
def work(data, pe):
    for i in range(1, 5):
        pgas.put(data, data, pe, i)
    pgas.quiet()

with pgas.init():
    me = pgas.my_pe()
    data = pgas.zeros(8, np.int32)
    work[1, 1](data, 1 - me)
    pgas.barrier_all()
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pgas.barrier_all()
"""
    ended = real_job(text, PGAS_TRACE=f"timeline:{tmp_path}/t", PGAS_TRANSPORT="ibgda")
    assert ended.status != 0
    trace = read([f"{tmp_path}/t"])
    for pe in (0, 1):
        assert [(e.nbytes, e.peer) for e in trace.pes[pe].events if e.name == "put"] == [(4 * i, 1 - pe) for i in range(1, 5)]
    assert all(post.executed is not None for post in flows.of(trace).posts if post.call is not None and post.call.name == "put")


def test_jobs_of_one_process_have_files_of_their_own(job, tmp_path):
    text = "for _ in range(2):\n    with pgas.init():\n        pgas.zeros(1)\n"
    traced(job, tmp_path, text, 1)
    assert [read([f"{tmp_path}/{name}"]).pes[0].pe for name in ("t", "t-2")] == [0, 0]


def test_wrong_files(tmp_path):
    with pytest.raises(PgasError, match=r"there is no trace file .*/none or .*/none.0; set PGAS_TRACE=timeline:"):
        files([f"{tmp_path}/none"])
    (tmp_path / "other").write_text("x" * (2 << 20))
    with pytest.raises(PgasError, match="other is not a trace file of pgas 1"):
        read([f"{tmp_path}/other"])
    file = events.TraceFile(f"{tmp_path}/early.0", 64)
    file.close()
    with pytest.raises(PgasError, match="the job did not begin"):
        read([f"{tmp_path}/early"])
    for pe, of in enumerate("ab"):
        WrittenPE(f"{tmp_path}/t", pe, job=of).file.close()
    with pytest.raises(PgasError, match=r"of different jobs: .*t.0 is of PE 0 of 2 in job 1, .*t.1 is of PE 1 of 2 in job 2; name"):
        read([f"{tmp_path}/t"])


def test_a_file_that_cannot_be_written(job, tmp_path):
    ended = job("pgas.init()", npes=1, PGAS_TRACE=f"timeline:{tmp_path}/no/t")
    assert re.search(r"PGAS_TRACE=timeline:.*/no/t: cannot write .*/no/t.0: No such file or directory", ended.err), ended


def test_unknown_words(job):
    ended = job("pgas.init()", npes=1, PGAS_TRACE="time")
    assert "PGAS_TRACE=time: unknown: time; must be one or more of wqe, cqe, cmd, timeline[:FILE]" in ended.err, ended


def test_hang_reports_have_the_last_calls(job, tmp_path):
    text = """
@pgas.jit
def stuck(data, sig, pe):
    for i in range(1, 7):
        pgas.put(data, data, pe, i)
    pgas.fence()
    pgas.signal_wait_until(sig, 0, pgas.EQ, 1)

pgas.init()
stuck[1, 1](pgas.zeros(8), pgas.zeros(1, np.uint64), 0)
"""
    ended = job(text, npes=1, PGAS_TRACE=f"timeline:{tmp_path}/t", PGAS_TIMEOUT="1")
    assert "pgas: PE 0:   last calls of block 0: put to PE 0, put to PE 0, put to PE 0, fence\n" in ended.err, ended


class MemoryOfFilesInMemory:
    """Memory that maps files in /dev/shm only, like CUDA."""

    on_gpu = True

    def map_file(self, address, nbytes, fd):
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/shm/"):
            raise TransportError("the GPU cannot write into the mapping of a file")
        self.fd = os.dup(fd)


def test_a_file_that_cuda_does_not_pin_is_in_memory_until_the_end(tmp_path):
    timeline, memory, path = Timeline(str(tmp_path / "t"), 3, 16), MemoryOfFilesInMemory(), tmp_path / "t.3"
    timeline.map(memory)
    while_it_runs = os.readlink(path)
    assert while_it_runs.startswith("/dev/shm/t.3-")
    timeline.team(0, [0, 1])
    os.pwrite(memory.fd, b"\x2a", events.RINGS + 4000 * events.EVENT_SIZE)  # a kernel
    timeline.close()
    os.close(memory.fd)
    timeline.add(events.CALLED, 0, "pgas.too_late")  # by another thread
    assert not path.is_symlink()
    assert not os.path.exists(while_it_runs)
    data, _, capacity = events.open_for_reading(str(path))
    assert (capacity, list(events.lines(data))) == (16, [{"team": 0, "pes": [0, 1]}])
    assert data[events.RINGS + 4000 * events.EVENT_SIZE] == 0x2A


def test_no_room_in_memory(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PgasError, match=r"no room for \d+ MiB in /dev/shm \(No space left on device\); a smaller PGAS_TRACE_EVENTS"):
        Timeline(str(tmp_path / "t"), 0, 4096).map(MemoryOfFilesInMemory())
    assert not (tmp_path / "t.0").is_symlink()


def test_calls_and_launches_are_ranges_where_nvtx_is_installed(tmp_path, monkeypatch):
    ranges = []
    nvtx = SimpleNamespace(push_range=lambda name, domain: ranges.append((name, domain)), pop_range=lambda domain: ranges.append(domain))
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setattr(window, "constants", lambda: SimpleNamespace(num_qps=1))
    timeline = Timeline(str(tmp_path / "t"), 0, 64)
    timeline.start({}, [], lambda mine: [mine])
    try:
        with parameters.around("barrier_all"):
            timeline.launching("failed", 0)
            timeline.launching("kernel", 0)
            timeline.launched()
    finally:
        timeline.close()
    assert ranges == [("pgas.barrier_all", "pgas"), ("failed", "pgas"), "pgas", ("kernel", "pgas"), "pgas", "pgas"]


def test_a_link_of_a_killed_job_and_a_change_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    killed, memory = events.TraceFile("t.1", 64), MemoryOfFilesInMemory()
    killed.map(lambda fd: memory.map_file(0, 0, fd))  # and no close()
    left = os.readlink("t.1")
    events.TraceFile("t.1", 64).close()
    assert not os.path.exists(left)
    again = events.TraceFile("t.2", 64)
    again.map(lambda fd: memory.map_file(0, 0, fd))
    monkeypatch.chdir("/")
    again.close()
    assert (tmp_path / "t.2").stat().st_size == again.nbytes
    assert not (tmp_path / "t.2").is_symlink()


def test_a_copy_for_which_there_is_no_room(tmp_path, monkeypatch):
    timeline = Timeline(str(tmp_path / "t"), 0, 64)
    path = next(tmp_path.iterdir())
    timeline.map(MemoryOfFilesInMemory())
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.warns(UserWarning, match=rf"PGAS_TRACE: cannot write {path}: No space left on device; the timeline stays in memory"):
        timeline.close()
    events.open_for_reading(str(path))
    os.unlink(os.readlink(path))
    assert list(tmp_path.iterdir()) == [path]


def test_calls_in_progress_are_not_lost(tmp_path):
    """A call takes its ticket when it begins; its record comes when it ends."""
    file = events.TraceFile(str(tmp_path / "t"), 64)
    record = events.EVENT.pack(1 | 5 << events.TICKET_SHIFT, 7, 9, *[0] * 5)
    ring = events.BLOCKS
    os.pwrite(file.fd, record, events.RINGS + (ring * 64 + 5) * events.EVENT_SIZE)
    assert list(file.newest(4)) == [0]
    file.close()
    ((found, (lost, rows)),) = _records(*events.open_for_reading(str(tmp_path / "t"))).items()
    assert (found, lost, len(rows)) == (ring, 0, 1)
