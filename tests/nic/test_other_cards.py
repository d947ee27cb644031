"""Jobs over cards that differ from the usual one: the same results, whatever the card returns or refuses."""

import jobs
import posting
import pytest

from pgas.base.errors import PgasError
from pgas.kernels import window
from pgas.sass import CONSTANTS

job = jobs.job

over_both = pytest.mark.parametrize("transport", ["ibgda", "ibrc"])

#: Each PE asks its right neighbor. The bytes of a value differ, so a wrong order of bytes shows.
ATOMICS = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
right = (me + 1) % n
A, B = 0x0102030405060708, 0x1112131415161718

@pgas.jit
def fetch(dest, old, a, b, pe):
    old[0] = pgas.atomic_fetch_add(dest, 0, 5, pe)
    old[1] = pgas.atomic_fetch_inc(dest, 0, pe)
    old[2] = pgas.atomic_swap(dest, 0, b, pe)
    old[3] = pgas.atomic_compare_swap(dest, 0, b, a, pe)
    old[4] = pgas.atomic_compare_swap(dest, 0, b, 0, pe)
    old[5] = pgas.atomic_fetch_and(dest, 0, 0xFFFF, pe)
    old[6] = pgas.atomic_fetch_or(dest, 0, 0xF0000, pe)
    old[7] = pgas.atomic_fetch_xor(dest, 0, 0xFF, pe)
    old[8] = pgas.atomic_fetch(dest, 0, pe)
    pgas.atomic_add(dest, 0, 1, pe)
    old[9] = pgas.atomic_fetch_max(dest, 0, b, pe)
    old[10] = pgas.g(dest, 0, pe)

@pgas.jit
def fetch_by_lanes(dest, old, pe):
    old[cuda.threadIdx.x] = pgas.atomic_fetch_add(dest, 1, 3, pe)

@pgas.jit
def add_fractions(dest, pe):
    pgas.atomic_add(dest, 0, 0.25, pe)

@pgas.jit
def exchange(dest, source, sig, pe):
    pgas.put_signal_block(dest, source, sig, 0, 0x0102030405060708, pgas.SIGNAL_SET, pe)
    pgas.put_signal_block(dest, source, sig, 1, 0x0102030405060708, pgas.SIGNAL_ADD, pe)
    pgas.signal_wait_until(sig, 0, pgas.EQ, 0x0102030405060708)
    pgas.signal_wait_until(sig, 1, pgas.EQ, 0x0102030405060708)

for dtype in (np.int64, np.uint64, np.int32):
    a, b = (int(np.array(value).astype(dtype)) for value in (A, B))
    dest, old = pgas.array(np.array([a, 0], dtype)), pgas.zeros(64, dtype)
    pgas.barrier_all()
    fetch[1, 1](dest, old, a, b, right)
    pgas.barrier_all()
    low = a & 0xFFFF
    wanted = [a, a + 5, a + 6, b, a, a, low, low | 0xF0000, (low | 0xF0000) ^ 0xFF, ((low | 0xF0000) ^ 0xFF) + 1, b]
    say(f"PE {me}: {[int(v) for v in old.copy_to_host()[:11]] == wanted or old.copy_to_host()}")
    fetch_by_lanes[1, 64](dest, old, right)
    say(f"PE {me}: {sorted(old.copy_to_host()) == list(range(0, 3 * 64, 3)) or old.copy_to_host()}")
    pgas.barrier_all()
    say(f"PE {me}: {pgas.atomic_fetch_add(dest, 0, 1, right) == b or dest.copy_to_host()}")

total = pgas.zeros(1, np.float64)
pgas.barrier_all()
add_fractions[1, 16](total, right)
pgas.barrier_all()
dest, source, sig = pgas.zeros(100, np.int64), pgas.full(100, me, np.int64), pgas.zeros(2, np.uint64)
pgas.barrier_all()
exchange[1, 32](dest, source, sig, right)
sums = pgas.zeros(100, np.int64)
pgas.reduce(pgas.TEAM_WORLD, sums, source, pgas.SUM)
say(f"PE {me}: {total[0] == 4 and (dest.copy_to_host() == (me - 1) % n).all() and (sums.copy_to_host() == 1).all()}")
"""


@over_both
def test_a_card_that_returns_old_values_big_endian(job, transport):
    """atomic_req_8B_endianness_mode is 0."""
    ended = job(ATOMICS, PGAS_TRANSPORT=transport, PGAS_SOFTHCA_FAULTS="atomics=big_endian")
    assert ended.lines(0) == ended.lines(1) == 10 * ["True"], ended


#: The heap of 4 MiB grows twice by 2 MiB. ``a`` and ``b`` are the words around the two boundaries between its three pieces.
GROWTH = """
from pgas.kernels import window

job = pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
right, left = (me + 1) % n, (me - 1) % n
WORDS, MIDDLE = 2001, 1000

@pgas.jit
def put(dest, source, pe):
    pgas.put_block(dest, source, pe)
    pgas.quiet()

@pgas.jit
def get(dest, source, pe):
    pgas.get_block(dest, source, pe)

@pgas.jit
def send(dest, source, sig, idx, pe):
    pgas.put_signal_block(dest, source, sig, idx, 7, pgas.SIGNAL_SET, pe)
    pgas.put_signal_block(dest, source, sig, idx + 1, 7, pgas.SIGNAL_ADD, pe)
    pgas.signal_wait_until(sig, idx, pgas.EQ, 7)
    pgas.signal_wait_until(sig, idx + 1, pgas.EQ, 7)

@pgas.jit
def update(dest, old, start, pe):
    i = start + cuda.threadIdx.x
    pgas.p(dest, i, 10 * i, pe)
    pgas.quiet()
    old[cuda.threadIdx.x] = pgas.atomic_fetch_add(dest, i, 1, pe)
    pgas.atomic_or(dest, i, 1 << 40, pe)
    pgas.quiet()
    old[8 + cuda.threadIdx.x] = pgas.g(dest, i, pe)

@pgas.jit
def scatter(dest, source, pe):
    pgas.iput_block(dest, source, 2, 1, pe)

@pgas.jit
def add_up(dest, source):
    pgas.reduce_block(pgas.TEAM_WORLD, dest, source, pgas.SUM)

def check(what, found, wanted):
    if not (np.asarray(found) == wanted).all():
        say(f"PE {me}: {what}: {found}")
    pgas.barrier_all()

def around(array, boundary):
    at = (boundary + window.slot(me) + window.HEAP_OFFSET - job.address(array)) // 8
    return array[at - MIDDLE : at - MIDDLE + WORDS]

def of(pe):
    return np.arange(WORDS) + 10_000 * pe

within, old, sig = pgas.zeros(3 << 17, np.int64), pgas.zeros(16, np.int64), pgas.zeros(8, np.uint64)
within, sizes, made = within[:WORDS], [job.heap.size], []
put[1, 64](within, within, me)  # compiled before the heap grows
pgas.barrier_all()
for _ in range(2):
    made.append(pgas.zeros(2 << 17, np.int64))
    sizes.append(job.heap.size)
a, b = around(made[0], sizes[0]), around(made[1], sizes[1])
say(f"PE {me}: {[size >> 20 for size in sizes]}")

within[:] = of(me)
pgas.barrier_all()
put[1, 64](a, within, right)
pgas.barrier_all()
check("far crosses", a.copy_to_host(), of(left))
put[1, 64](b[300:], a[:-300], right)
pgas.barrier_all()
check("both cross", b[300:].copy_to_host(), of((me - 2) % n)[:-300])
get[1, 64](b, a, right)
check("get", b.copy_to_host(), of(me))
pgas.put(b, a, right)
pgas.barrier_all()
check("of the host", b.copy_to_host(), of((me - 2) % n))
for i, boundary in enumerate((a, b)):
    start = MIDDLE - 4
    boundary[:] = 0
    pgas.barrier_all()
    update[1, 8](boundary, old, start, right)
    pgas.barrier_all()
    wrote = 10 * np.arange(start, start + 8)
    check("old values", old.copy_to_host(), [*wrote, *(wrote + 1 | 1 << 40)])
    check("on the host", pgas.atomic_fetch_add(boundary, MIDDLE, 5, right), wrote[4] + 1 | 1 << 40)
    send[1, 32](boundary, within, sig, 2 * i, right)
    pgas.barrier_all()
    check("signalled", boundary.copy_to_host(), of(left))
    # signals in the pieces themselves
    words = boundary.view(np.uint64)[MIDDLE - 1 : MIDDLE + 1]
    words[:] = 0
    pgas.barrier_all()
    send[1, 32](boundary[:100], within[:100], words, 0, right)
    pgas.barrier_all()
    check("signals", words.copy_to_host(), 7)
    scatter[1, 32](boundary, within[:MIDDLE], right)
    pgas.barrier_all()
    check("iput", boundary.copy_to_host()[: 2 * MIDDLE : 2], of(left)[:MIDDLE])
    boundary[:] = of(me)
    pgas.barrier_all()
    add_up[1, 64](within, boundary)
    pgas.barrier_all()
    check("reduce", within.copy_to_host(), sum(of(pe) for pe in range(n)))
    within[:] = of(me)
    pgas.fcollect(pgas.TEAM_WORLD, boundary[MIDDLE - 30 : MIDDLE - 30 + 50 * n], within[:50])
    check("fcollect", boundary[MIDDLE - 30 : MIDDLE - 30 + 50 * n].copy_to_host(), np.concatenate([of(pe)[:50] for pe in range(n)]))
    private = cuda.to_device(of(me) + 5)
    pgas.register(private)
    put[1, 64](boundary, private, right)
    pgas.barrier_all()
    check("registered", boundary.copy_to_host(), of(left) + 5)
    pgas.unregister(private)
say(f"PE {me}: done")
"""


@over_both
def test_a_card_that_refuses_a_heap_of_several_pieces_as_one(job, transport):
    """The heap grows twice, and each piece has a region of its own: everything crosses from one to the next, near and far."""
    ended = job(
        GROWTH, PGAS_TRANSPORT=transport, PGAS_SOFTHCA_FAULTS="refuse=mr_of_chunks", PGAS_SYMMETRIC_SIZE="4M", PGAS_CUMEM_GRANULARITY="2M"
    )
    assert ended.lines(0) == ended.lines(1) == ["[4, 6, 8]", "done"], ended


def test_a_process_has_kernels_for_one_order_of_bytes(monkeypatch):
    posting.freeze(monkeypatch, CONSTANTS["ibgda"])
    for _ in range(2):  # two jobs
        window.freeze(CONSTANTS["ibgda"])
        window.learn(big_endian=True, rung_by_cpu=False)
        assert window.constants().big_endian
    window.freeze(CONSTANTS["ibgda"])
    with pytest.raises(PgasError, match=r"big_endian was True, now False.*start a new process"):
        window.learn(big_endian=False, rung_by_cpu=False)
