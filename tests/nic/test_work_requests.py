"""The proxy thread's verbs back end with a model of a device: every kind of request, contended words, full queues, faults."""

import errno
import random

import numpy as np
import pytest
from verbs_model import CELL_LKEY, DEPTH, HEAP_KEY, LKEY, RECORD, Model, set_word, word

from pgas.base.backend import SIMULATOR
from pgas.kernels.codes import Request
from pgas.kernels.layout import LANDING
from pgas.transports.ibrc import work_requests
from pgas.transports.verbs.abi import SendFlags, WcStatus, WrOpcode

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="capability missing: the simulator")

SIGNALED = SendFlags.SIGNALED
ONES = (1 << 64) - 1


def kinds(posted):
    return [request.opcode.name for request in posted]


def test_write_and_read():
    model = Model()
    model.local[:10], model.heap[100:110] = range(10), range(50, 60)
    at, to = model.local.ctypes.data, model.heap.ctypes.data
    posted = model.run(
        [(Request.WRITE, 80, at, to), (Request.READ, 72, at + 800, to + 800), (Request.READ | LANDING, 8, *cell(model, 3), to)]
    )
    assert [(r.opcode, r.lkey, r.rkey, r.nbytes, r.flags) for r in posted] == [
        (WrOpcode.RDMA_WRITE, LKEY, HEAP_KEY, 80, SIGNALED),
        (WrOpcode.RDMA_READ, LKEY, HEAP_KEY, 72, SIGNALED),
        (WrOpcode.RDMA_READ, CELL_LKEY, HEAP_KEY, 8, SIGNALED),
    ]
    assert list(model.heap[:11]) == [*range(10), 0]
    assert list(model.local[100:110]) == [*range(50, 59), 0]
    assert model.cells[3] == 0


def cell(model, number):
    return (model.cells.ctypes.data + 8 * number,)


def test_messages_of_the_port():
    """Split at max_msg_sz; only the last one is signalled."""
    model = Model(message_max=1000)
    model.local[:300] = range(300)
    posted = model.run([(Request.WRITE, 2400, model.local.ctypes.data, model.heap.ctypes.data)])
    assert [(r.nbytes, SIGNALED in r.flags) for r in posted] == [(1000, False), (1000, False), (400, True)]
    assert (model.heap[:300] == np.arange(300)).all()
    assert not model.heap[300:].any()


def test_heaps_of_several_pieces():
    """Data is split where a piece ends, here or there; the last part is signalled."""
    model = Model(ends=(100, 300))
    model.local[:600] = range(1, 601)
    at, to = model.local.ctypes.data, model.heap.ctypes.data
    posted = model.run([(Request.WRITE, 8 * 400, at + 8 * 50, to + 8 * 10)])
    parts = [(50, 0, 0), (40, 1, 0), (160, 1, 1), (40, 2, 1), (110, 2, 2)]  # words, piece here, piece there
    parts = [(8 * n, LKEY + near, HEAP_KEY + far) for n, near, far in parts]
    assert [(r.nbytes, r.lkey, r.rkey) for r in posted] == parts
    assert [SIGNALED in r.flags for r in posted] == [False] * 4 + [True]
    assert (model.heap[10:410] == model.local[50:450]).all()


def test_atomics_and_signals_in_pieces():
    """They use the piece of their word."""
    model = Model(ends=(100, 300))
    model.local[:20], model.heap[:] = range(1, 21), 5
    at, to = model.local.ctypes.data, model.heap.ctypes.data
    word = to + 8 * 100
    model.run(
        [
            (Request.READ, 8 * 250, at + 8 * 90, to + 8 * 80),
            (Request.ADD | LANDING, 8, *cell(model, 0), word - 8, 3),
            (Request.ADD | LANDING, 8, *cell(model, 1), word, 4),
            (Request.SWAP | LANDING, 8, *cell(model, 2), to + 8 * 300, 9),
            (Request.ADD | LANDING, 4, *cell(model, 3), word - 4, 1),
            (Request.SIGNAL_SET, 8 * 20, at, word + 8, 77, to + 8 * 299),
            (Request.SIGNAL_ADD, 0, 0, 0, 2, to + 8 * 301),
            (Request.READ | LANDING, 8, *cell(model, 4), to + 8 * 350),
        ]
    )
    assert list(model.cells[:3]) == [5, 5, 5]
    assert model.cells[4] == 5
    assert list(model.heap[299:302]) == [77, 9, 7]
    assert (model.heap[101:121] == model.local[:20]).all()
    assert (model.local[90:340] == 5).all()


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("before", [0, 3, 8, 15, 16])
def test_a_store_across_two_pieces(inline, before):
    """Of an element that is not aligned."""
    model, payload = Model(inline=inline, ends=(100,)), bytes(range(0xF0, 0x100))
    low, high = (int.from_bytes(payload[i : i + 8], "little") for i in (0, 8))
    posted = model.run([(Request.STORE, 16, 0, model.heap.ctypes.data + 800 - before, low, high)])
    assert model.heap.tobytes()[799 - before : 817 - before] == b"\0" + payload + b"\0"
    assert [r.nbytes for r in posted] == [n for n in (before, 16 - before) if n]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_store(inline, nbytes):
    model, payload = Model(inline=inline), bytes(range(0xF0, 0x100))
    low, high = (int.from_bytes(payload[i : i + 8], "little") for i in (0, 8))
    (request,) = model.run([(Request.STORE, nbytes, 0, model.heap.ctypes.data, low, high)])
    assert model.heap.tobytes()[:17] == payload[:nbytes] + bytes(17 - nbytes)
    assert (request.lkey, request.rkey, SendFlags.INLINE in request.flags) == (CELL_LKEY, HEAP_KEY, inline)


def test_atomics_of_8_bytes():
    model = Model()
    model.heap[:3] = 5, 7, 9
    at = model.heap.ctypes.data
    posted = model.run(
        [
            (Request.ADD, 8, 0, at, -2),
            (Request.ADD | LANDING, 8, *cell(model, 0), at + 8, 3),
            (Request.COMPARE_SWAP | LANDING, 8, *cell(model, 1), at + 16, ONES, 9),
            (Request.COMPARE_SWAP | LANDING, 8, *cell(model, 2), at + 16, 1, 9),
        ]
    )
    assert kinds(posted) == ["ATOMIC_FETCH_AND_ADD"] * 2 + ["ATOMIC_CMP_AND_SWP"] * 2
    assert list(model.heap[:4]) == [3, 10, ONES, 0]
    assert list(model.cells[:4]) == [7, 9, ONES, 0]


@pytest.mark.parametrize("offset", [0, 4])
def test_atomics_of_4_bytes(offset):
    """Fetched values stay big-endian; the other half of the word is unchanged."""
    model = Model()
    halves = model.heap.view(np.uint32)
    halves[:4] = 0xFFFF_FFFF, 0x1234, 0xFFFF_FFFF, 0x1234
    mine, other = offset // 4, 1 - offset // 4
    before, neighbor = int(halves[mine]), int(halves[other])
    at = model.heap.ctypes.data + offset
    model.run(
        [
            (Request.ADD | LANDING, 4, *cell(model, 0), at, 3),
            (Request.ADD, 4, 0, at, 1),
            (Request.COMPARE_SWAP | LANDING, 4, *cell(model, 1), at, 0xABCD, (before + 4) & 0xFFFF_FFFF),
            (Request.COMPARE_SWAP | LANDING, 4, *cell(model, 2), at, 0x5555, 0x7777_7777),
        ]
    )
    assert (halves[mine], halves[other]) == (0xABCD, neighbor)
    assert [int.from_bytes(model.cells[i : i + 1].tobytes()[:4], "big") for i in range(3)] == [before, (before + 4) & 0xFFFF_FFFF, 0xABCD]


@pytest.mark.parametrize(
    ("what", "wanted"),
    [(Request.SWAP, 0x0F0F), (Request.AND, 0x1234 & 0x0F0F), (Request.OR, 0x1234 | 0x0F0F), (Request.XOR, 0x1234 ^ 0x0F0F)],
)
@pytest.mark.parametrize(("nbytes", "offset"), [(8, 0), (4, 0), (4, 4)])
def test_atomics_that_verbs_lack(what, wanted, nbytes, offset):
    """By compare-and-swap of the word, also while others change it; the other half of the word is unchanged."""
    model = Model()
    at, fill = model.heap.ctypes.data, (1 << 64) - 1 - ((1 << 8 * nbytes) - 1 << 8 * offset)
    model.heap[:2] = fill | 0x1234 << 8 * offset, ONES
    changes = iter([0x10_0000, 0x20_0000])

    def disturb(request):
        model.heap[0] ^= np.uint64(next(changes, 0) << 8 * offset)

    model.before = disturb
    posted = model.run([(what | LANDING, nbytes, *cell(model, 0), at + offset, 0x0F0F), (what, nbytes, 0, at + offset, 0x0F0F)])
    before = 0x1234 ^ 0x30_0000
    once = {Request.SWAP: wanted, Request.AND: wanted, Request.OR: wanted | 0x30_0000, Request.XOR: wanted | 0x30_0000}[what]
    twice = before if what is Request.XOR else once
    assert int(model.heap[0]) == fill | twice << 8 * offset
    assert model.heap[1] == ONES
    assert int.from_bytes(model.cells[:1].tobytes()[:nbytes], "big" if nbytes == 4 else "little") == before
    assert set(kinds(posted)) == {"ATOMIC_CMP_AND_SWP"}


def test_a_fetch_takes_one_try():
    """An addition of 0 to 4 bytes: the value found by its compare-and-swap is the answer, whether it matched or not."""
    model = Model()
    model.heap[0] = 0x1234_0000_5678
    posted = model.run([(Request.ADD | LANDING, 4, *cell(model, 0), model.heap.ctypes.data + 4, 0)])
    assert kinds(posted) == ["ATOMIC_CMP_AND_SWP"]
    assert int.from_bytes(model.cells[:1].tobytes()[:4], "big") == 0x1234
    assert model.heap[0] == 0x1234_0000_5678


@pytest.mark.parametrize("nbytes", [0, 40])
def test_signals(nbytes):
    """Data, then the signal, on the same queue; the data is unsignalled."""
    model = Model()
    model.local[:5], model.heap[100:102] = range(1, 6), 3
    seen = []
    model.before = lambda request: seen.append((request.opcode.name, list(model.heap[:5]))) and None
    at, to, sig = model.local.ctypes.data, model.heap.ctypes.data, model.heap[100:].ctypes.data
    posted = model.run([(Request.SIGNAL_SET, nbytes, at, to, 9, sig), (Request.SIGNAL_ADD, nbytes, at, to, ONES, sig + 8)])
    assert list(model.heap[100:102]) == [9, 2]
    data = [1, 2, 3, 4, 5] if nbytes else [0] * 5
    assert all(found == data for name, found in seen if name.startswith("ATOMIC"))
    assert [SIGNALED in r.flags for r in posted if r.opcode == WrOpcode.RDMA_WRITE] == [False, False][: 2 * bool(nbytes)]
    assert kinds(posted).count("ATOMIC_CMP_AND_SWP") == 2  # the first guess of the word was wrong
    assert kinds(posted).count("ATOMIC_FETCH_AND_ADD") == 1


def test_many_on_one_word():
    """Outstanding requests expect each other's results: at most two tries for each, if nobody else changes the word."""
    model = Model()
    model.heap[0] = 1 << 40
    posted = model.run([(Request.ADD, 4, 0, model.heap.ctypes.data, 1)] * 500)
    assert model.heap[0] == (1 << 40) + 500
    assert len(posted) <= 1000
    assert model.largest <= DEPTH


@pytest.mark.parametrize("seed", range(4))
def test_contended_words(seed):
    """Somebody else adds to the same words between any two work requests. Nothing is lost, and the fetched values form a history."""
    model, rng = Model(together=1 + seed * 5), random.Random(seed)
    halves, others = model.heap.view(np.uint32), np.zeros(8, np.int64)

    def disturb(request):
        if rng.random() < 0.3:
            which = rng.randrange(8)
            halves[which] += 1
            others[which] += 1

    model.before = disturb
    at = model.heap.ctypes.data
    targets = [rng.randrange(8) for _ in range(300)]
    model.run([(Request.ADD, 4, 0, at + 4 * which, 1) for which in targets])
    wanted = others + np.bincount(targets, minlength=8)
    assert list(halves[:8]) == list(wanted), seed
    assert not model.heap[4:].any()


def test_a_set_signal_wins_over_adds_of_others():
    """A SIGNAL_SET overwrites any value, and later additions are kept."""
    model = Model()
    changes = iter([1, 2, 3])

    def disturb(request):
        if request.opcode == WrOpcode.ATOMIC_CMP_AND_SWP and (value := next(changes, None)):
            model.heap[0] = value

    model.before = disturb
    posted = model.run([(Request.SIGNAL_SET, 0, 0, 0, 77, model.heap.ctypes.data)])
    assert model.heap[0] == 77
    assert len(posted) == 4


@pytest.mark.parametrize("seed", range(8))
def test_the_last_of_several_sets_stays(seed):
    """Also if an early try matches by chance: values are small, and others occur in between."""
    rng = random.Random(seed)
    for _ in range(5):
        model = Model(together=1 + seed % 4)
        word, second = model.heap.ctypes.data, model.heap[1:].ctypes.data
        model.heap[:2] = rng.randrange(4), rng.randrange(4)
        values = [rng.randrange(4) for _ in range(6)]
        adds = rng.randrange(1, 4)
        requests = [(Request.SIGNAL_SET, 0, 0, 0, value, word) for value in values]
        requests += [(Request.SIGNAL_SET, 0, 0, 0, values[0], second)] + [(Request.SIGNAL_ADD, 0, 0, 0, 1, second)] * adds
        model.run(requests)
        assert (model.heap[0], model.heap[1]) == (values[-1], values[0] + adds), (seed, values)


def test_a_request_of_more_messages_than_the_queue_holds():
    """Its slots are reused while it is posted, although only its last message is waited for."""
    model = Model(message_max=8)
    model.local[:400] = np.arange(400)
    posted = model.run([(Request.WRITE, 3200, model.local.ctypes.data, model.heap.ctypes.data)])
    assert (model.heap[:400] == np.arange(400)).all()
    assert len(posted) == 400
    assert model.largest <= DEPTH


def test_queues_never_overrun():
    """Thousands of requests of every kind through a queue of 128 entries, which is kept full, in lists."""
    model, rng = Model(message_max=64), random.Random(1)
    at, to = model.local.ctypes.data, model.heap.ctypes.data
    model.local[:] = np.arange(4096)
    requests, adds, stores = [], 0, {}
    for i in range(3000):
        kind = rng.randrange(4)
        if kind == 0:
            requests.append((Request.WRITE, 200, at + 8 * 1000, to + 8 * 1000))
        elif kind == 1:
            requests.append((Request.ADD, 4, 0, to, 1))
            adds += 1
        elif kind == 2:
            which = rng.randrange(100, 200)
            requests.append((Request.STORE, 8, 0, to + 8 * which, i))
            stores[which] = i
        else:
            requests.append((Request.SIGNAL_SET, 64, at + 8 * 2000, to + 8 * 2000, i, to + 8 * 300))
            last = i
    model.run(requests)
    assert model.heap[0] == adds
    assert all(model.heap[which] == value for which, value in stores.items())
    assert (model.heap[1000:1025] == np.arange(1000, 1025)).all()
    assert (model.heap[2000:2008] == np.arange(2000, 2008)).all()
    assert model.heap[300] == last
    assert model.largest <= DEPTH
    assert max(map(len, model.lists)) > 8


def test_a_failed_work_request_stops_the_loop():
    model = Model()
    model.before = lambda request: WcStatus.REM_ACCESS_ERR if request.wr_id == 3 else None
    posted = model.run([(Request.STORE, 8, 0, model.heap.ctypes.data + 8 * i, 1) for i in range(10)])
    assert model.failed == RECORD
    assert model.fault == (work_requests.COMPLETION_FAILED, WcStatus.REM_ACCESS_ERR)
    assert int(model.own[work_requests.FAULT_VENDOR // 8]) == 0x77
    assert int(model.own[work_requests.FAULT_SLOT // 8]) == next(r.at for r in posted if r.wr_id == 3)
    assert list(model.heap[:4]) == [1, 1, 0, 0]


def test_a_refused_post_stops_the_loop():
    model = Model(post_error=errno.ENOMEM)
    model.run([(Request.STORE, 8, 0, model.heap.ctypes.data, 1)])
    assert model.failed == RECORD
    assert model.fault == (work_requests.POST_FAILED, errno.ENOMEM)


@pytest.mark.parametrize("what", [request for request in Request if request >= Request.ADD])
def test_a_device_without_atomics(what):
    """WRITE, READ and STORE work; requests that need an atomic are refused before anything is posted."""
    model = Model(atomics=False)
    at, to = model.local.ctypes.data, model.heap.ctypes.data
    posted = model.run([(Request.STORE, 8, 0, to, 1), (Request.WRITE, 8, at, to + 8), (Request.READ, 8, at + 80, to)])
    assert kinds(posted) == ["RDMA_WRITE", "RDMA_WRITE", "RDMA_READ"]
    assert not model.failed
    model = Model(atomics=False)
    assert model.run([(what, 8, at, to + 8, 1, to + 16)]) == []
    assert model.failed == RECORD
    assert model.fault == (work_requests.NO_ATOMICS, what)


def test_tables_of_the_model():
    memory = np.zeros(2, np.uint64)
    set_word(memory.ctypes.data + 4, -1, 4)
    assert word(memory.ctypes.data) == 0xFFFF_FFFF_0000_0000
