"""Random WQEs, most with one mistake: what the checks of usual WQEs pass, the states pass, too, with the same work record."""

import random

import numpy as np
import pytest
import wqes as wqe

from pgas.base.backend import SIMULATOR
from pgas.transports.mlx5 import doorbell
from pgas.transports.mlx5.contexts import Access
from pgas.transports.softhca import tables
from pgas.transports.softhca.cuda import batch, usual_wqes
from pgas.transports.softhca.engine import pipeline, states

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="calls what is compiled for the CPU")

QPN, PEER, LKEY, RKEY, HERE, THERE, ROOM = 0x405, 0x409, 0x700, 0xB00, 0x10_0000, 0x20_0000, 4096
RIGHTS = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC) | tables.LOCAL_READ

#: Fields of the work record that executing a WQE reads; those of a NOP are the first ones.
FIELDS = ("OPCODE", "CE", "NBYTES", "SEGMENTS", "WIDTH", "OPERANDS", "REMOTE")
OF_NOP = 4


def card():
    """Return tables with two connected QPs and two keys, and their records by name."""
    made = tables.Tables()
    for number, peer in ((QPN, PEER), (PEER, QPN)):
        fields = {"state": tables.RTS, "qpn": number, "remote_qpn": peer, "pd": 3, "log_msg_max": 12, "access": 7}
        for name, value in fields.items():
            made.qps[name][number & tables.QP_ROWS_MASK] = value
    for key, start in ((LKEY, HERE), (RKEY, THERE)):
        fields = {"key": key, "pd": 3, "access": RIGHTS, "start": start, "nbytes": ROOM, "address": start + (1 << 32)}
        for name, value in fields.items():
            made.mkeys[name][key >> 8] = value
    rows = {
        "own": (made.qps, QPN),
        "peer": (made.qps, PEER),
        "here": (made.mkeys, LKEY >> 8),
        "there": (made.mkeys, RKEY >> 8),
        "control": (made.control, 0),
    }
    records = {name: table[(at := number & (len(table) - 1)) : at + 1] for name, (table, number) in rows.items()}
    return made, records


def forms(choose, index):
    """Return a WQE of a random form, at the end of both keys or before it."""
    nbytes = choose.choice([1, 8, 100, ROOM // 2])
    there, here = (choose.choice([0, 8, ROOM - 16, ROOM - 8]) for _ in range(2))
    fit = min(there, here, ROOM - nbytes)
    head, far, near = (index, QPN), (THERE + there, RKEY), (HERE + here, LKEY)
    flags = {"fm_ce_se": choose.choice([0, 8, 12])}
    operands = [choose.getrandbits(32) for _ in range(4)]
    return choose.choice([
        lambda: wqe.write(*head, THERE + fit, RKEY, HERE + fit, LKEY, nbytes, **flags),
        lambda: wqe.write(*head, THERE + ROOM - nbytes, RKEY, HERE + ROOM - nbytes, LKEY, nbytes, **flags),
        lambda: wqe.write_inline(*head, *far, choose.randbytes(choose.randint(1, 8)), **flags),
        lambda: wqe.write_inline(*head, THERE, RKEY, choose.randbytes(choose.randint(1, 28)), **flags),
        lambda: wqe.read(*head, THERE + fit, RKEY, HERE + fit, LKEY, nbytes, **flags),
        lambda: wqe.nop(*head, **flags),
        lambda: wqe.dump(*head, *near, **flags),
        lambda: wqe.fetch_add(*head, *far, *near, operands[0], **flags),
        lambda: wqe.compare_swap(*head, *far, *near, *operands[:2], **flags),
        lambda: wqe.masked_fetch_add(*head, *far, *near, choose.choice([4, 8]), *operands[:2], **flags),
        lambda: wqe.masked_compare_swap(*head, *far, *near, choose.choice([4, 8]), *operands, **flags),
    ])()  # fmt: skip


def by_states(hca, qp, work, _wqe, index):
    batch.begin(work, index)
    return pipeline.check(hca, qp, work, states.CHECK_CONTROL)


class Checks:
    """Both checks of one WQE at a time."""

    def __init__(self):
        self.made, self.records = card()
        self._buffer, self._work = np.zeros(24, np.int64), np.zeros(batch.RECORD_WORDS, np.int64)

    def compare(self, data, index, about=""):
        """Return whether a WQE is usual and passes; then the states must pass it, too, with the same fields."""
        work, found = self._work, []
        self._buffer[:] = 0
        self._buffer.view(np.uint8)[: len(data)] = bytearray(data)
        address, record, qp = (int(array.ctypes.data) for array in (self._buffer, work, self.records["own"]))
        for check in (usual_wqes.check_usual, by_states):
            work[:] = -1
            work[tables.WORK_WQE // 8], work[tables.WORK_CAPACITY // 8] = address, batch.SEGMENTS
            state = check(self.made.address, qp, record, address, index)
            found.append(
                (state, [int(work[getattr(tables, f"WORK_{name}") // 8]) for name in FIELDS], work[tables.WORK_PAIRS // 8 :][:2].tolist())
            )
        (state, fields, pair), (of_states, all_fields, all_pair) = found
        if state == usual_wqes.UNUSUAL:
            return False
        assert state == of_states, (about, data.hex())
        assert data[11] & wqe.FM_MASK == 0, (about, data.hex())
        if state == states.COMPLETE:
            assert fields[:OF_NOP] == all_fields[:OF_NOP], (about, data.hex())
        else:
            assert (fields, pair) == (all_fields, all_pair), (about, data.hex())
        return True


def test_usual_wqes_pass_the_states_too():
    """All of these forms but the DUMP are usual, if there is no mistake."""
    choose, checks = random.Random(5), Checks()
    passed, refused = 0, 0
    for index in range(6000):
        data, mistake = bytearray(forms(choose, index)), choose.choice(["none", "wqe", "row"])
        kept = {name: row.copy() for name, row in checks.records.items()}
        if mistake == "wqe":  # in a byte, or in a bit, which is a smaller mistake
            data[choose.randrange(len(data))] ^= choose.choice([1 << choose.randrange(8), choose.getrandbits(8)])
        elif mistake == "row":
            row = checks.records[choose.choice(["own", "peer", "here", "there", "control"])]
            name = choose.choice(["state", "qpn", "remote_qpn", "pd", "access", "send_psn", "recv_psn", "broken", "log_msg_max"])
            if "key" in row.dtype.names:
                name = choose.choice(["key", "pd", "access", "start", "nbytes"])
            elif "fail_count" in row.dtype.names:
                name = "fail_count"
            row[name] ^= 1 << choose.choice([0, 1, 2, 3, 4, 30])
        usual = checks.compare(data, index, mistake)
        passed, refused = passed + usual, refused + (not usual)
        assert usual or mistake != "none" or data[3] == wqe.Opcode.DUMP, data.hex()
        for name, row in kept.items():
            checks.records[name][:] = row
    assert passed > 2000
    assert refused > 1000


def test_near_misses():
    """WQEs with two mistakes, or one that chance seldom makes: none passes."""
    checks = Checks()
    head, far, near = (7, QPN), (THERE, RKEY), (HERE, LKEY)
    four = wqe.masked_compare_swap(*head, *far, *near, 4, 1, 2, 3, 4)
    read, fenced = wqe.read(*head, *far, *near, 8), wqe.write(*head, *far, *near, 8, fm_ce_se=int(wqe.Fm.FENCE))
    wide = bytearray(four)
    wide[0], wide[51] = wqe.Opmod.MASKED_8, 8  # 8 bytes in the layout of 4
    inline = bytearray(read)
    inline[32] |= 0x80
    for data in (wide, inline, fenced, wqe.write(*head, THERE + ROOM - 7, RKEY, HERE, LKEY, 8)):
        assert not checks.compare(bytes(data), 7), bytes(data).hex()
    assert checks.compare(four, 7)
    assert not checks.compare(wqe.write(*head, THERE, RKEY, HERE + ROOM - 7, LKEY, 8), 7)
    # Keys at the end of the address space, whose start is negative: one address before it wraps to a large offset.
    for row, key in (("there", RKEY), ("here", LKEY)):
        checks.records[row]["start"] = -(1 << 63)
        at = {"there": (1 << 63) - 8 if row == "there" else THERE, "here": (1 << 63) - 8 if row == "here" else HERE}
        assert not checks.compare(wqe.write(*head, at["there"], RKEY, at["here"], LKEY, 8), 7), hex(key)
        checks.records[row]["start"] = HERE if row == "here" else THERE


def test_what_a_doorbell_lets_expect():
    """WQEBBs up to its index; none of a doorbell that is missing, of another QP, or more than the queue ahead."""
    made, records = card()
    own = records["own"]
    own["mask"], own["consumer"], own["producer"] = 63, 0xFFF0, 0xFFF4
    qp = int(own.ctypes.data)

    def expected(index, qpn=QPN):
        return batch.expected(qp, int.from_bytes(doorbell.next_empty(index, qpn), "little", signed=True))

    assert [batch.expected(qp, 0), expected(0xFFF4), expected(0xFFF9), expected(0x10004)] == [4, 4, 9, 20]
    assert [expected(0xFFF9, PEER), expected(0xFFF4 + 64), expected(0xFFF4 + 65), expected(0xFFF3)] == [4, 68, 4, 4]
    assert made.address
