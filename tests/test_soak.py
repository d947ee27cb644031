"""The soak test: what it draws, that it finds what is wrong and says where, whole runs."""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from test_perftests import mpirun, with_mpirun

import pgas
from pgas.perftests import draws, soak, traffic
from pgas.perftests.draws import BLOCK, LANES, THREAD, WARP, Kind, Shape

#: What `make check` runs of this tool; the rest is for `make check-all`.
SMOKE = ("test_run_through_the_nic[2-ibgda-4000]",)

simulated = pytest.mark.skipif(not pgas.SIMULATOR, reason="needs the simulator: on a GPU what is drawn is device code")

SHAPE = Shape(n_pes=3, queue_pairs=4, ctas=2, threads=96, steps=20, lane_bytes=64, source_bytes=1 << 13)
SEED, ROUND = 11, 2
APART = (Kind.IPUT, Kind.IGET)


def drawn(shape=SHAPE):
    """(sender, step, cta, thread) -> what it does."""
    places = np.ndindex(shape.n_pes, shape.steps, shape.ctas, shape.threads)
    return {place: draws.draw(shape, SEED, ROUND, *place) for place in places}


def once(operations):
    """The calls: one for each warp or block."""
    return [(place, o) for place, o in operations.items() if o.scope == THREAD or place[3] == o.first]


# --------------------------------------------------------------------------------------------------------------- what is drawn


@simulated
def test_everything_occurs():
    calls = once(drawn(SHAPE._replace(steps=120)))  # eight blocks a kind, or so
    by_scope = {scope: {Kind(o.kind) for _, o in calls if o.scope == scope} for scope in (THREAD, WARP, BLOCK)}
    assert by_scope == {THREAD: set(Kind), WARP: set(list(Kind)[:8]), BLOCK: set(list(Kind)[:8])}
    for kind, widths in {
        Kind.P: {1, 2, 4, 8, 16},
        Kind.G: {1, 2, 4, 8, 16},
        Kind.ATOMIC_ADD: {4, 8},
        Kind.ATOMIC_FETCH_ADD: {4, 8},
        Kind.ATOMIC: {4, 8},
        Kind.IPUT: {2, 4, 8, 16},
        Kind.IGET: {2, 4, 8, 16},
    }.items():
        assert {o.width for _, o in calls if o.kind == kind} == widths
    assert {(place[0], o.pe) for place, o in calls} == {(a, b) for a in range(3) for b in range(3)}
    assert {o.qp for _, o in calls} == set(range(5))
    assert {o.together for _, o in calls if o.kind == Kind.P} == {0, 1}
    assert {(o.to_stride, o.from_stride) for _, o in calls if o.kind == Kind.IPUT} == {(a, b) for a in range(1, 5) for b in range(1, 5)}
    assert {o.value % draws.UPDATES for _, o in calls if o.kind == Kind.ATOMIC} == set(range(draws.UPDATES))
    copies = [o for _, o in calls if o.kind < Kind.IPUT]
    for scope, room in ((THREAD, 64), (WARP, 32 * 64), (BLOCK, 96 * 64)):
        sizes = [o.nbytes for o in copies if o.scope == scope]
        assert 1 <= min(sizes) < 64
        assert room // 8 < max(sizes) <= room  # few are of blocks
    assert {o.start % 16 for o in copies} == {o.source % 16 for o in copies} == set(range(16))


@simulated
def test_operations_stay_in_their_lots():
    for (sender, step, cta, thread), o in drawn().items():
        read = o.nbytes if o.kind not in APART else ((o.nelems - 1) * o.from_stride + 1) * o.width
        assert 0 <= o.source <= SHAPE.source_bytes - read
        if o.holder == -1:
            continue
        lots = {THREAD: 1, WARP: LANES, BLOCK: SHAPE.threads}[o.scope] if not o.together else LANES
        assert o.first == thread // lots * lots
        begin = np.ravel_multi_index((sender, step, cta, o.first), (3, 20, 2, 96)) * SHAPE.lane_bytes
        assert begin <= o.start
        assert o.start + o.nbytes <= begin + lots * SHAPE.lane_bytes
        if o.kind >= Kind.IPUT:
            assert o.start % o.width == o.source % o.width == 0


@simulated
def test_threads_agree_on_what_they_do_together():
    operations = drawn()
    for (sender, step, cta, thread), o in operations.items():
        first = operations[sender, step, cta, o.first]
        if o.scope != THREAD:
            assert o == first
        elif o.together:
            mine = (o.kind, o.width, o.pe, o.qp, o.start, o.nbytes, o.source)
            assert mine == (first.kind, first.width, first.pe, first.qp, first.start, first.nbytes, first.source)
        warp = operations[sender, step, cta, thread // LANES * LANES]
        assert (o.scope, o.kind if o.scope == THREAD else 0) == (warp.scope, warp.kind if warp.scope == THREAD else 0)


@simulated
def test_rounds_and_seeds_differ():
    keys = {draws.key(seed, round_, pe, what) for seed in (1, 2) for round_ in (0, 1) for pe in (0, 1) for what in (0, 1, 2)}
    assert len(keys) == 24


@simulated
def test_wanted_is_what_operations_write():
    """Every operation performed by numpy, one after the other, leaves the area that wanted() tells word by word."""
    shape = SHAPE._replace(steps=4)
    operations = drawn(shape)
    area_words, source_words = shape.n_pes * shape.steps * shape.ctas * shape.threads * shape.lane_bytes // 8, shape.source_bytes // 8

    def image(key, words):
        return np.array([draws.word(key, i) for i in range(words)], np.uint64).view(np.uint8)

    sources = [image(draws.key(SEED, ROUND, pe, 1), source_words) for pe in range(3)]
    backgrounds = [draws.key(SEED, ROUND, pe, 2) for pe in range(3)]
    areas = [image(key, area_words) for key in backgrounds]
    for _, o in once(operations):
        if o.kind in APART:
            for i in range(o.nelems):
                to, source = o.start + i * o.to_stride * o.width, o.source + i * o.from_stride * o.width
                areas[o.holder][to : to + o.width] = sources[o.origin][source : source + o.width]
        elif o.holder != -1:
            areas[o.holder][o.start : o.start + o.nbytes] = sources[o.origin][o.source : o.source + o.nbytes]
    for pe in range(3):
        for lot, o in enumerate(operations.values()):
            payload = draws.key(SEED, ROUND, o.origin, 1)
            words = range(lot * shape.lane_bytes // 8, (lot + 1) * shape.lane_bytes // 8)
            found = [draws.wanted(backgrounds[pe], payload, pe, o, i) for i in words]
            assert found == list(areas[pe].view(np.uint64)[words.start : words.stop])


# ------------------------------------------------------------------------------------------------------- what is wrong is found

FEW = ["--ops", "100", "--seed", "5", "--ctas", "1", "--threads", "128"]


def flip(array, index):
    """Change one bit of an element."""
    array[index : index + 1].copy_to_device(array[index : index + 1].copy_to_host() ^ 1)


@pytest.fixture(scope="module")
def lots():
    """What a run of one PE with these flags does in its first round."""
    shape = Shape(1, 2, 1, 128, 8, 32, 16 << 10)
    return {place: draws.draw(shape, 5, 0, *place) for place in np.ndindex(1, 8, 1, 128)}


def test_a_right_run_is_right(capsys):
    assert soak.run(FEW) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert "seed 5: " in captured.out
    assert captured.out.endswith("; 0 wrong bytes\n")
    assert captured.err == ""


@simulated
@pytest.mark.parametrize("kind", [Kind.PUT_NBI, Kind.P, Kind.GET_NBI, Kind.IPUT, Kind.ATOMIC])
def test_a_wrong_byte_is_named(kind, lots, capsys):
    place, o = next((place, o) for place, o in lots.items() if o.kind == kind and o.scope == THREAD)
    at = o.start + o.nbytes - 1
    assert soak.run(FEW, between=lambda _, heap: flip(heap.area1, at)) == 1
    captured = capsys.readouterr()
    first, second = captured.err.splitlines()
    assert first == "soak: error: PE 0: 1 wrong byte"
    assert second.startswith(f"soak: error: PE 0: byte {at} is 0x")
    assert f": byte {o.nbytes - 1} of a {kind.name.lower()} of {o.nbytes} bytes at {o.start} of PE 0 by PE 0, CTA 0, thread " in second
    assert second.endswith(f", step {place[1]} of round 0, seed 5")
    assert captured.out.endswith("; 1 wrong bytes, 2 faults\n")


@simulated
def test_a_byte_that_nobody_writes_is_named(lots, capsys):
    written = {byte for o in lots.values() for byte in range(o.start, o.start + o.nbytes) if o.holder == 0}
    at = next(byte for byte in range(8 * 128 * 32) if byte not in written)
    assert soak.run(FEW, between=lambda _, heap: flip(heap.area1, at)) == 1
    assert f"byte {at} is 0x" in (text := capsys.readouterr().err)
    assert "which nobody writes to, beside a " in text


@simulated
@pytest.mark.parametrize(
    ("words", "index", "name"),
    [
        ("words8", 3, "signal 3"),
        ("words8", traffic.SUMS + 63, "sum 63"),
        ("words8", traffic.COUNTERS, "counter 0"),
        ("words4", 5, "4-byte sum 5"),
        ("words4", 64 + 7, "4-byte counter 7"),
    ],
)
def test_a_wrong_word_is_named(words, index, name, capsys):
    assert soak.run(FEW, between=lambda _, heap: flip(getattr(heap, words), index)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"soak: error: PE 0: {name} is 0x")


@simulated
def test_a_value_that_is_fetched_twice_is_found(monkeypatch, capsys):
    fetch, first = pgas.atomic_fetch_add, {}
    monkeypatch.setattr(pgas, "atomic_fetch_add", lambda dest, idx, value, pe: first.setdefault(idx, fetch(dest, idx, value, pe)))
    assert soak.run([*FEW[:1], "2000", *FEW[2:]]) == 1
    assert "counter" in (text := capsys.readouterr().err)
    assert " values once" in text


@simulated
def test_an_atomic_that_fetches_something_else_is_found(monkeypatch, capsys):
    swap = pgas.atomic_swap
    monkeypatch.setattr(pgas, "atomic_swap", lambda dest, idx, value, pe: swap(dest, idx, value, pe) ^ 1)
    assert soak.run([*FEW[:1], "2000", *FEW[2:]]) == 1
    assert "of a atomic of " in capsys.readouterr().err


@simulated
def test_an_operation_that_is_left_out_is_found(monkeypatch, capsys):
    monkeypatch.setattr(pgas, "put_warp", lambda *_: None)
    assert soak.run([*FEW[:1], "2000", *FEW[2:]]) == 1
    assert "of a put_warp of " in capsys.readouterr().err


@simulated
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"errors": 1}, "the card counted 1 errors for "),
        ({"nbytes": -1}, "the card moved "),
        ({"wqes": 1 << 20}, "WQEs instead of "),
        ({"wqes": -(1 << 20)}, "WQEs instead of "),
    ],
)
def test_what_the_card_counts_is_compared(wrong, words, monkeypatch, capsys):
    """A card that has executed what the kernels asked for, and then one thing more or less."""
    seen = Counter()

    def counts():
        after = {name: seen[name] + wrong.get(name, 0) * bool(seen) for name in ("wqes", "nbytes", "errors")}
        return after

    check = soak.Soak._wrong_counts

    def compare(self, tallies):
        seen.update({"wqes": int(tallies[traffic.MOST]), "nbytes": int(tallies[traffic.NBYTES])})
        return check(self, tallies)

    monkeypatch.setattr(soak, "_card_counts", counts)
    monkeypatch.setattr(soak.Soak, "_wrong_counts", compare)
    assert soak.run(FEW) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--ops", "0"], "argument --ops: 0 is out of range"),
        (["--ops", "1.5"], "argument --ops: '1.5' is not an integer"),
        (["--ops", "inf"], "argument --ops: 'inf' is not an integer"),
        (["--threads", "48"], "argument --threads: 48 makes a broken warp"),
        (["--transport", "tcp"], "argument --transport: 'tcp' is unknown"),
    ],
)
def test_bad_value_is_one_sentence(argv, words, capsys, monkeypatch):
    monkeypatch.delenv("PMI_RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        soak.run(argv)
    assert stop.value.code == 2
    assert f"soak: error: {words}" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------ whole runs


@with_mpirun
@pytest.mark.parametrize(("npes", "transport", "ops"), [(2, "ibgda", 4000), (3, "ibrc", 2000)])
def test_run_through_the_nic(npes, transport, ops):
    done = mpirun(npes, "-m", "pgas.perftests.soak", "--transport", transport, "--ops", ops)
    assert done.returncode == 0, done.stderr
    assert f" rounds of {npes} PEs, seed 1: " in done.stdout


PROGRAM = """
import sys, pgas
from pgas.perftests import soak

def flip(round_, heap):
    if pgas.my_pe() == 1 and round_ == 1:
        heap.area1[777:778].copy_to_device(heap.area1[777:778].copy_to_host() ^ 1)

sys.exit(soak.run(["--ops", "3e3"], between=flip))
"""


@with_mpirun
def test_a_wrong_byte_of_another_pe(tmp_path):
    (tmp_path / "flip.py").write_text(PROGRAM)
    done = mpirun(2, tmp_path / "flip.py")
    assert done.returncode == 1
    assert "soak: error: PE 1: 1 wrong byte\nsoak: error: PE 1: byte 777 is 0x" in done.stderr
    assert "of round 1, seed 1" in done.stderr


BUILD_FOR_A_GPU = """
import sys
import pgas
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype
from pgas.perftests import draws, sass, traffic

def array(dtype):
    return types.Array(dtype, 1, "C")

sass.configure("p2p")
i64, elements = types.int64, (types.uint8, types.uint16, types.uint32, types.uint64, types.complex128)
heap = types.NamedTuple([array(t) for t in (*elements, *elements, types.uint64, types.uint32)], traffic.Heap)
notes = types.NamedTuple([array(t) for t in (i64, i64, i64, from_dtype(traffic.FAULT))], traffic.Notes)
shape = types.NamedUniTuple(i64, len(draws.Shape._fields), draws.Shape)
for kernel, arguments in {traffic.fill: (heap,), traffic.operate: (shape, heap, notes), traffic.check: (shape, heap, notes)}.items():
    built = sass.build(kernel.__wrapped__, (*arguments, i64, i64))
    print(kernel.__name__, len(built.instructions), built.registers, built.spills)
    assert built.spills == 0
"""


@pytest.mark.sass
def test_kernels_compile_for_a_gpu():
    """In a process of its own: this one may have the simulator."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", BUILD_FOR_A_GPU], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
