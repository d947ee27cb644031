"""Jobs over cards that differ from the usual one: the same results, whatever the card returns or refuses."""

import jobs
import posting
import pytest

from pgas.base.errors import PgasError
from pgas.kernels import window
from pgas.sass import CONSTANTS

job = jobs.job

over_both = pytest.mark.parametrize("transport", ["ibgda", "ibrc"])

#: Each PE asks its right neighbour. The bytes of a value differ, so a wrong order of bytes shows.
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


def test_a_process_has_kernels_for_one_order_of_bytes(monkeypatch):
    posting.freeze(monkeypatch, CONSTANTS["ibgda"])
    for _ in range(2):  # two jobs
        window.freeze(CONSTANTS["ibgda"])
        window.learn(big_endian=True)
        assert window.constants().big_endian
    window.freeze(CONSTANTS["ibgda"])
    with pytest.raises(PgasError, match=r"big_endian was True, now False.*start a new one"):
        window.learn(big_endian=False)
