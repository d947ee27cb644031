"""The order checker finds every race of this folder in one run, with both lines and the missing link, and none in the right twins."""

import ast
import json
import os
import pickle
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import examples
import pytest
import without_order
from jobs import mpirun

from pgas.check import clocks, replay
from pgas.check.log import ACQUIRED, END, HAS_MET, LOAD, MEETS, MET, UPDATE, Horizon, merged
from pgas.check.order import Order

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("test_", "together")))

#: By the link that a program lacks, what the checker may call it: some can be mended in two ways.
NAMES = {"wait": {"wait", "wait or barrier"}, "barrier": {"wait or barrier", "barrier"}, "fence": {"fence", "put_signal or fence"}}


@cache
def constants(name):
    tree = ast.parse((HERE / f"{name}.py").read_text())
    found = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
    return {key: ast.literal_eval(found[key]) for key in ("MISSING", "PES", "FAILS") if key in found}


#: Programs that end with an error, or with a timeout.
FAILING = [name for name in PROGRAMS if "FAILS" in constants(name)]


def marked(name, mark):
    lines = (HERE / f"{name}.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if f"#: {mark}" in line}


def together(pes, folder, runs):
    if not runs:
        return
    command = [*mpirun(pes), sys.executable, HERE / "together.py", folder, *runs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def run_all(folder, names):
    """Run programs and their twins, each with a log of its own."""
    for pes in (2, 3):
        of_pes = [name for name in names if constants(name).get("PES", 2) == pes]
        runs = [f"{name}:right" for name in of_pes] + [name for name in of_pes if name not in FAILING]
        for run in runs:
            (folder / run).mkdir(parents=True, exist_ok=True)
        together(pes, folder, runs)


def findings(folder):
    return Order.of(folder).findings.all


def found_as_marked(name, found):
    """Whether the findings name the missing link between the marked lines; found: (line, line, missing link)."""
    first, second, missing = marked(name, "first"), marked(name, "second"), constants(name)["MISSING"]
    links = {link for one, two, link in found if (one in first and two in second) or (one in second and two in first)}
    return bool(links & NAMES.get(missing, {missing}))


def wrong_among(folder, names):
    """Run programs and their twins. Return those whose race is not found, or whose twin is reported, with what the checker says."""
    run_all(folder, names)
    wrong = {}
    for name in names:
        found = [(f.first.line, f.second.line, f.missing) for f in findings(folder / name)] if name not in FAILING else None
        twin = [f.text for f in findings(folder / f"{name}:right")]
        if twin or (found is not None and not found_as_marked(name, found)):
            wrong[name] = f"{constants(name)['MISSING']} is missing; the checker says {found}, and of the twin {twin}"
    return wrong


def test_every_race_is_found_and_every_twin_is_right(tmp_path):
    """One test, because tests in several processes would each run all programs."""
    assert wrong_among(tmp_path, PROGRAMS) == {}


def test_a_wait_comes_after_what_does_not_wait_for_it(tmp_path):
    """PE 1 waits in turn 2; PE 0 updates the word before and after that, then learns from PE 1, and updates it once more."""
    logs = {0: [(UPDATE, 1), (UPDATE, 3), (MET, 0), (HAS_MET, 6), (UPDATE, 7)], 1: [(ACQUIRED, 2), (LOAD, 0), (MEETS, 5)]}
    for pe, events in logs.items():
        (tmp_path / f"{pe}.log").write_bytes(pickle.dumps(events) + END)
    assert [(pe, event) for pe, events in merged(tmp_path) for event in events] == [
        *((0, event) for event in logs[0][:3]),
        *((1, event) for event in logs[1]),
        *((0, event) for event in logs[0][3:]),
    ]


def test_nothing_is_said_of_what_follows_a_lost_end(tmp_path):
    """PE 1 is killed, and its log lacks the second barrier that PE 0 has passed. The wait that PE 0 ended after that is not reported."""
    meetings = [(MEETS, 4), (HAS_MET, 6), (UPDATE, 7), (LOAD, 0), (MEETS, 9), (HAS_MET, 10), (LOAD, 0), (ACQUIRED, 12, 3)]
    logs = {0: [(UPDATE, 1), (LOAD, 0), *meetings], 1: [(UPDATE, 2), (MEETS, 5), (LOAD, 0)]}
    for pe, events in logs.items():
        (tmp_path / f"{pe}.log").write_bytes(pickle.dumps(events) + END * (pe == 0))
    known = [event for pe, events in merged(tmp_path) for event in events if pe == 0]
    assert known == logs[0][:7]  # up to the second exchange
    assert Horizon(tmp_path).waits_that_ended() == {(0, 3)}
    (tmp_path / "1.log").write_bytes(pickle.dumps(logs[1]) + END)
    assert sum(len(events) for _, events in merged(tmp_path)) == 13
    assert Horizon(tmp_path).waits_that_ended() == set()


FAILS_AFTER_A_BARRIER = """
import numpy as np, pgas
with pgas.init():
    me, n = pgas.my_pe(), pgas.n_pes()
    t, one = pgas.zeros(n, np.int64), pgas.full(1, me + 1)
    for q in range(n):
        pgas.put(t[me : me + 1], one, q)
    pgas.barrier_all()
    t.copy_to_host()
    pgas.barrier_all()
    raise SystemError
"""


def test_a_program_that_fails_has_no_race_for_it(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS_AFTER_A_BARRIER)
    command = [sys.executable, "-m", "pgas.check", "-n", "2", tmp_path / "fails.py"]
    for _ in range(2):  # 7 of 8 runs had a report
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, "SystemError" in done.stderr) == (1, True), done.stdout + done.stderr
        assert "not ordered" not in done.stdout


@pytest.mark.parametrize("seed", range(20))
def test_a_clock_that_is_computed_later_knows_the_same(seed, monkeypatch):
    """Of atomics by threads of three warps on two words, each of which tells what all before it have told."""

    def told(few):
        monkeypatch.setattr(clocks, "_FEW", few)
        choose, words, threads = random.Random(seed), [clocks.NOTHING] * 2, [clocks.NOTHING] * 96
        for tick in range(200):
            word, thread = choose.randrange(2), choose.randrange(96)
            words[word] = threads[thread] = clocks.joined_later(threads[thread], words[word]).with_thread(thread, tick)
            if choose.random() < 0.05:
                warp = choose.randrange(3) * 32
                met = clocks.joined(threads[warp : warp + 32]).with_warps([range(warp, warp + 32)], tick)
                threads[warp : warp + 32] = [met] * 32
            if choose.random() < 0.05:
                words[word] = words[word].with_block(0, tick, 32, 32)
        return [(clock.launches, clock.blocks, clock.threads) for clock in (*words, *threads)]

    assert told(-1) == told(1000)


def checked(folder, text, *arguments, pes=2):
    """Run a program under the checker, and return the process that has ended."""
    program = folder / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "pgas.check", "-n", str(pes), program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


READS = """
import numpy as np
import pgas

made = {"pgas": pgas}  # A kernel that exec() makes has no module.
exec("def read(word, seen):\\n    seen[0] = pgas.atomic_fetch(word, 0, 1) + word[0]", made)
read = pgas.jit(made["read"])

with pgas.init():
    word, seen = pgas.full(1, 3, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(read, 1, 1, (word, seen))
    pgas.synchronize()
    assert (seen[0], word[0]) == (6, 3)
    pgas.barrier_all()
"""


def test_reads_do_not_race(tmp_path):
    """Atomic, plain, and by the host."""
    done = checked(tmp_path, READS)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


PASSED_BACK = """
import numpy as np
import pgas
from pgas import cuda

@pgas.jit
def replace(data, signal):
    pe, block = pgas.my_pe(), cuda.blockIdx.x
    if pe == 0 and block == 0:
        pgas.p(data, 0, 1, 2)
        pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 1)
    elif pe == 1 and block == 0:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 0)
    elif pe == 0:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        pgas.p(data, 0, 2, 2)  # later than the fence of the other block

with pgas.init():
    data, signal = pgas.zeros(1, np.int64), pgas.zeros(1, np.uint64)
    pgas.launch(replace, 2, 1, (data, signal))
    pgas.barrier_all()
"""


def test_a_fence_orders_what_another_block_does_after_it(tmp_path):
    """Also if the block learns of the fence from another PE, which has fenced in between."""
    done = checked(tmp_path, PASSED_BACK, pes=3)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


FETCHED = """
import sys, time
import numpy as np
import pgas

@pgas.jit
def fetch(word, seen):
    if pgas.my_pe() == 0:
        pgas.p(word, 1, 5, 1)
        pgas.fence()  # orders p before the fetch
        seen[0] = pgas.atomic_fetch(word, 1, 1)
        seen[0] += pgas.atomic_fetch(word, 0, 1)

@pgas.jit
def add_then_store(word):
    if pgas.my_pe() == 1:
        pgas.atomic_add(word, 0, 1, 1)
        pgas.quiet()
        word[0] = 7

with pgas.init():
    word, seen = pgas.zeros(2, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(fetch, 1, 1, (word, seen))
    pgas.synchronize()
    if "store" in sys.argv:
        time.sleep(0.3 * pgas.my_pe())
        pgas.launch(add_then_store, 1, 1, (word,))
    pgas.barrier_all()
"""


def test_an_atomic_read_and_other_operations(tmp_path):
    """A fence orders them; a store races with it, also after an atomic update, which does not."""
    for argument, lines in ("", 0), ("store", 1):
        said = checked(tmp_path, FETCHED, argument).stdout
        assert len(re.findall(r"atomic_fetch\(word, 0, 1\).* is read", said)) == lines, said


FAILS = """
import numpy as np
import pgas

@pgas.jit
def add(x):
    pgas.p(x, pgas.my_pe(), 1, 0)

with pgas.init():
    x = pgas.zeros(2, np.int64)
    add[1, 1](x)
    pgas.synchronize()  # not barrier_all
    x.copy_to_host()
    pgas.broadcast_object(0)
    assert pgas.my_pe() == 1
"""


@pytest.mark.parametrize("command", [["-m", "pgas.check", "-n", "2"], []], ids=["check", "mpirun"])
def test_a_program_that_fails(tmp_path, command):
    """The report on what it did until then is printed all the same."""
    (tmp_path / "fails.py").write_text(FAILS)
    words = [*([] if command else mpirun(2)), sys.executable, *command, tmp_path / "fails.py"]
    done = subprocess.run(words, env={**os.environ, "PGAS_CHECK": "order"}, capture_output=True, text=True, timeout=60)
    assert "AssertionError" in done.stderr, done.stderr
    assert "these two accesses are not ordered; missing: quiet" in done.stdout + done.stderr, done.stdout + done.stderr
    assert done.returncode == 3 if command else done.returncode != 0


def test_under_mpirun():
    """Otherwise, each process would check a job of its own."""
    done = subprocess.run([*mpirun(2), sys.executable, "-m", "pgas.check", "prog.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "check: error: this command was started by mpirun already, but starts the PEs itself (-n)" in done.stderr


ZEROED = """
import time
import numpy as np
import pgas
from pgas import cuda

with pgas.init():
    dest, source, sig = pgas.zeros(4, np.int64), pgas.full(4, 7, np.int64), pgas.empty(1, np.uint64)
    stream = cuda.stream()
    sig[:] = 0
    if pgas.my_pe() == 0:
        time.sleep(0.3)
        pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, 1, stream=stream)
    else:
        pgas.signal_wait_until(sig, 0, pgas.EQ, 1, stream=stream)
        stream.synchronize()
        assert dest[0] == 7
    pgas.barrier_all()
    pgas.free(sig)
    later = pgas.zeros(1, np.uint64)  # in the same memory
"""


def test_a_store_that_races_with_a_signal_is_one_report(tmp_path):
    """The wait has seen the signal, so the data behind it is not reported as well. An array is named although it has been freed."""
    said = checked(tmp_path, ZEROED).stdout
    assert said.count("pgas: these two accesses") == 1, said
    assert "sig[:]: sig[0] of PE 1" in said


def replayed(name, *options, module=False):
    program = ["-m", name] if module else [HERE / f"{name}.py"]
    command = [sys.executable, "-m", "pgas.check", "--replay", "1", "-n", "2", *options, *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(HERE)})
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stdout


def test_the_command_reports_and_shows_the_wrong_value(tmp_path):
    said = replayed("signal_after_put", "--json", tmp_path / "found.json", module=True)
    assert re.search(r"missing: put_signal or fence\n.*signal_after_put.py:\d+: pgas.put\(.*of PE 1 \(made in line \d+\)", said), said
    assert re.search(r"report 1 with the .*: signal_after_put.py:\d+ reads 0 instead of 7 from \w+\[0\] of PE", said), said
    assert '"missing": "put_signal or fence"' in (tmp_path / "found.json").read_text()


#: Programs whose replay shows no other value. Four write the same value again. collect_again: the members wait for each other before they
#: write; launch_taken_for_barrier: a launch waits for the other PEs; put_into_source: the collective waits for the one that is held;
#: lock_without_acquire: the read would have to be early.
SHOW_NOTHING = {
    "alltoall_then_fcollect", "collect_again", "launch_taken_for_barrier", "leader_returns_credit_too_early", "lock_without_acquire",
    "put_into_source", "root_runs_ahead", "signals_overtake",
}  # fmt: skip


def wrong_values(folder, names):
    """Replay the first reports of programs; return (value normally, value in the other order) by program, None if both are the same."""
    run_all(folder / "logs", names)
    plans = {}
    for name in names:
        order = Order.of(folder / "logs" / name)
        plans[name] = replay.Rerun.of(order.findings.all[0], order)
    assert [name for name in names if plans[name] is None] == [name for name in names if name == "signal_without_wait"]
    planned = [name for name in names if plans[name] is not None]
    for which in ("normal", "late"):
        for pes in (2, 3):
            of_pes = [name for name in planned if constants(name).get("PES", 2) == pes]
            for name in of_pes:
                (folder / which / name).mkdir(parents=True)
                (plans[name].normal() if which == "normal" else plans[name]).write_to(folder / which / name)
            together(pes, folder / which, of_pes)
    found = {}
    for name in planned:
        one, other = (replay.values(folder / which / name, plans[name]) for which in ("normal", "late"))
        different = replay.difference(one, other)
        found[name] = different and tuple(map(replay.shown, different))
    return found


def test_replays_show_the_wrong_value(tmp_path):
    """Two writes, an atomic of CUDA that loses others, a collective, the host, and another value of the same put."""
    expected = {
        "cleaned_before_last_update": ("0", "1"),
        "filled_after_arrival": ("7", "-1"),
        "flag_in_the_put": ("1", "0"),
        "host_reads_after_synchronize": ("0", "7"),
    }
    found = wrong_values(tmp_path, [*expected, "counter_and_cuda_atomic"])
    right, wrong = map(int, found.pop("counter_and_cuda_atomic"))
    assert wrong < right == 64
    assert found == expected


@pytest.mark.slow
def test_all_replays(tmp_path):
    """The number of programs whose first report shows a wrong value is also in docs/order.md."""
    found = wrong_values(tmp_path, [name for name in PROGRAMS if name not in FAILING])
    assert {name for name, values in found.items() if values is None} == SHOW_NOTHING
    assert len(found) - len(SHOW_NOTHING) == 74


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILING)
def test_programs_that_fail_are_explained(tmp_path, name):
    command = [sys.executable, "-m", "pgas.check", "-n", "2", "--json", tmp_path / "found.json", HERE / f"{name}.py"]
    done = subprocess.run(command, env={**os.environ, "PGAS_TIMEOUT": "1"}, capture_output=True, text=True, timeout=60)
    found = json.loads((tmp_path / "found.json").read_text())
    assert done.returncode == 3, done.stdout + done.stderr
    assert found_as_marked(name, [(f["first"]["line"], f["second"]["line"], f["missing"]) for f in found]), found


@pytest.mark.slow
@pytest.mark.parametrize("page", without_order.PAGES, ids=lambda page: page.stem)
def test_the_programs_of_the_docs_are_ordered(tmp_path, page):
    """All their commands; on the page of the memory model, with the argument that makes the program right."""
    for name, text in examples.programs(page).items():
        one = page.stem == "memory-model"
        of_name = [without_order.right_form(page, name)] if one else [c for c in examples.commands(page) if c.arguments[0] == name]
        for i, command in enumerate(of_name):
            said = [found for _, _, found in without_order.rows(command, text, tmp_path / f"{name}.{i}", ())]
            assert said == ["a write that ends the wait (8, 8)" if name == "forgotten.py" else "not found"], command
