"""python -m pgas trace --why: where the time of waits went, and the critical path, of traces with known times."""

import pytest
from written import SIGNAL, WrittenPE, late_sender

from pgas.base import events
from pgas.base.errors import PgasError
from pgas.trace import why
from pgas.trace.reading import read

US = 1000


def test_a_late_sender(tmp_path):
    late_sender(tmp_path / "t")
    found = why.Why(read([str(tmp_path / "t")]))
    (explained,) = found.waits()
    assert (explained.ended_by.name, explained.ended_by.pe, explained.duration) == ("put_signal", 1, 90 * US)
    assert dict(explained.parts) == {
        why.SKEW: 20 * US,  # from 10 to 30
        why.COMPUTE: 35 * US,  # to 50, and from 60 to 75
        why.CALLS: 10 * US,
        why.WIRE: 20 * US,
        why.POLL: 5 * US,
    }
    path = [(pe, (end - begin) // US, what) for pe, begin, end, what in found.critical_path(1)]
    assert path == [
        (1, 20, "own code"),
        (1, 10, "put 1 MiB to PE 0"),
        (1, 15, "own code"),
        (1, 25, "put_signal 512 bytes to PE 0, for signal_wait_until of PE 0"),
        (0, 10, "own code"),
    ]


def test_report(tmp_path):
    late_sender(tmp_path / "t")
    lines = list(why.report(read([str(tmp_path / "t")])))
    assert lines[0] == "1 waits took 90.0 us together, summed over blocks and PEs:"
    assert lines[1].split(":")[0].split() == ["38.9", "%", "35.0", "us", "sender's", "compute"]
    text = "\n".join(lines)
    assert "PE 0, block 0, wait[1, 32]: signal_wait_until, ended by put_signal 512 bytes to PE 0 of PE 1, block 0" in text
    assert next(iter(why.report(read([str(tmp_path / "t")]), "wait"))).startswith("1 waits took 90.0 us")
    with pytest.raises(PgasError, match="--kernel: there is no kernel other in the trace; its kernels are send, wait"):
        list(why.report(read([str(tmp_path / "t")]), "other"))
    assert "critical path of the last launch, wait[1, 32]: 80.0 us" in text


def test_the_critical_path_is_of_a_kernel_of_the_program(tmp_path):
    """Not of a call of the host after it; of that if there is no other kernel."""
    for name, shown in ("meet", "meet[1, 32]"), ("put_block_on_stream", "g_on_stream[1, 1]"):
        pes = [WrittenPE(tmp_path / name, pe) for pe in (0, 1)]
        for pe, begin in zip(pes, (20, 60), strict=True):
            pe.launch(f"{name}[1, 32]", 0, 100)
            pe.call("barrier_all", begin, 70)
            pe.launch("g_on_stream[1, 1]", 110, 150)
            pe.call("g", 120, 140, launch=2, peer=0)
            pe.file.close()
        text = "\n".join(why.report(read([str(tmp_path / name)])))
        assert f"critical path of the last launch, {shown}: " in text


def test_a_collective_waits_for_its_last_member(tmp_path):
    zero, one = WrittenPE(tmp_path / "t", 0), WrittenPE(tmp_path / "t", 1)
    for pe, begin in ((zero, 20), (one, 60)):
        pe.launch("meet[1, 32]", 0, 100)
        pe.call("barrier_all", begin, 70)
        pe.file.close()
    found = why.Why(read([str(tmp_path / "t")]))
    (explained,) = found.waits()
    assert (explained.wait.pe, explained.ended_by.pe) == (0, 1)
    assert dict(explained.parts) == {why.COMPUTE: 40 * US, why.COLLECTIVE: 10 * US}


def test_values_are_used_in_order(tmp_path):
    """Of writes that satisfy a wait, the first that has not ended an earlier one did; one after its end did not."""
    zero, one = WrittenPE(tmp_path / "t", 0), WrittenPE(tmp_path / "t", 1)
    for number, begin in enumerate((10, 30, 90)):
        one.call("signal_op", begin, begin + 1, peer=0, address=SIGNAL, value=1, word=0, nbytes=8 + number)
    for begin, end in ((0, 12), (20, 32), (40, 50)):
        zero.call("signal_wait_until", begin, end, address=SIGNAL, value=1, comparison=0)
    zero.call("signal_wait_until", 60, 61, address=SIGNAL + 8, value=1)
    for pe in (zero, one):
        pe.file.close()
    found = why.Why(read([str(tmp_path / "t")]))
    by = [found.ender(event) for event in found.trace.pes[0].events]
    assert [event and event.nbytes for event in by] == [8, 9, 9, None]
    assert dict(found.explain(found.trace.pes[0].events[3]).parts) == {why.UNKNOWN: US}


def test_no_waits(tmp_path):
    pe = WrittenPE(tmp_path / "t", 0, 1)
    pe.call("put", 1, 2, peer=0, address=SIGNAL, nbytes=8)
    pe.file.close()
    assert list(why.report(read([str(tmp_path / "t")]))) == ["no call waited for another PE"]
    assert events.BLOCKS == 2
