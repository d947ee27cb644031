"""Wrong calls of teams and collectives: one sentence when the kernel is compiled or after it ran, and no byte is written."""

import re

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import REFUSED, Watched, Words, checklist, everywhere, kernel_of, needs, needs_peer
from conformance.collectives import kernel, reducing

pytestmark = needs("team_split_strided", "alltoall_block", "reset")

#: Statements that must be refused when they are compiled, what the error says, and the dtypes of dest and source if they are not float32.
CASES = [
    ("pgas.alltoall(0, dest, source)", "pgas.alltoall: source has elements of type int32, dest of type float32", "f4", "i4"),
    (
        "pgas.reduce_block(0, dest, source, pgas.SUM)",
        "pgas.reduce_block: source has elements of type float32, dest of type float64",
        "f8",
        "f4",
    ),
    ("pgas.broadcast(0, dest, 1, 0)", "pgas.broadcast: source must be an array, not int64"),
    ("pgas.broadcast(0, dest, source, 0.5)", "pgas.broadcast: root must be an integer"),
    ("pgas.team_sync(0.5)", "pgas.team_sync: team must be an integer"),
    ("pgas.barrier_block(0, 0.5)", "pgas.barrier_block: channel must be an integer"),
    ("pgas.reduce(0, dest, source, pgas.AND)", "pgas.reduce: op AND takes integers, not elements of type float32"),
    (
        "pgas.inscan(0, dest, source, pgas.PROD)",
        "pgas.inscan: op PROD takes integers or floats, not elements of type complex64",
        "c8",
        "c8",
    ),
    (
        "pgas.exscan_block(0, dest, source, pgas.SUM)",
        "pgas.exscan_block: op SUM takes integers, floats, or complex numbers, not elements of type bool",
        "?",
        "?",
    ),
    (
        "pgas.reducescatter(0, dest, source, pgas.MAX)",
        "pgas.reducescatter: op MAX takes integers or floats, not elements of type Record",
        [("a", "f4"), ("b", "f4")],
        [("a", "f4"), ("b", "f4")],
    ),
    ("pgas.reduce(0, dest, source, 3)", "pgas.reduce: op must be pgas.SUM, PROD, MIN, MAX, AND, OR or XOR itself"),
    ("pgas.maxloc(0, dest, source)", "pgas.maxloc: dest must be a C-contiguous array of shape (n, 2)"),
    (
        "pgas.alltoallv(0, dest, source, source, source, source, source)",
        "pgas.alltoallv: dest_counts must be an array of integers with 1 dimension",
    ),
    ("pgas.fcollect_block(0, dest, source, 0, 1)", "pgas.fcollect_block: part must be two integers (i, k), not int64"),
    (
        "pgas.reducescatter_block(0, dest, source, pgas.SUM, 0, (0, 1.5))",
        "pgas.reducescatter_block: part must be two integers (i, k), not ",
    ),
    ("dest[0] = pgas.team_my_pe(1.5)", "pgas.team_my_pe: team must be an integer"),
]


@checklist("Collectives", "what does not fit is refused")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_refused_when_compiled(heap, case):
    statement, wanted, *dtypes = case
    dest, source = (heap.zeros(8, np.dtype(dtype)) for dtype in dtypes or ("f4", "f4"))
    with pytest.raises(REFUSED) as caught:
        kernel_of("dest, source", statement)[1, 32](dest, source)
    assert wanted in Words(re.sub(r"\x1b\[[0-9;]*m", "", str(caught.value)))


# -------------------------------------------------------------------------------------------------------- by sizes and values


@pgas.jit
def broadcast_from(team, dest, source, root, channel):
    pgas.broadcast(team, dest, source, root, channel)


@pgas.jit
def number_in(team, dest):
    number = pgas.team_my_pe(team)
    if number >= 0:  # on a GPU a kernel goes on after a refusal, with -1
        dest[0] = number


@pgas.jit
def exchange(team, dest, source, counts):
    pgas.alltoallv(team, dest, counts[0], counts[1], source, counts[2], counts[3])


@pgas.jit
def reduce_part(dest, source, i, k):
    pgas.reduce_block(0, dest, source, pgas.SUM, 0, (i, k))


@pgas.jit
def broadcast_part(dest, source, i, k):
    pgas.broadcast_block(0, dest, source, 0, part=(i, k))


def once(name, dest, source, team=0):
    kernel(name, "")[1, 1](team, dest, source)


def summed(name, dest, source):
    reducing(name, "", "SUM")[1, 1](0, dest, source)


def others(call, name, dest, source):
    """A call in place that is right for member 0 alone, which makes another one."""
    if pgas.my_pe():
        call(name, dest, source)
    else:
        once("collect", dest, dest[:1])


def broadcast(dest, source, root=0, channel=0):
    broadcast_from[1, 1](0, dest, source, root, channel)


def exchanged(dest, source, rows):
    """rows: dest_counts, dest_displs, source_counts, source_displs; a number stands for every member."""
    n = pgas.n_pes()
    counts = cuda.to_device(np.stack([np.broadcast_to(np.array(row, np.int64), n) for row in rows]))
    exchange[1, 1](0, dest, source, counts)


#: A call of (dest, source, n) on every PE: arrays of 64 elements each, the number of PEs; and what it is answered.
CALLS = {
    "alltoall with a rest": (lambda d, s, n: once("alltoall", d, s[: n + 1]), "source has {n1} elements, which is not a multiple"),
    "alltoall into too little": (lambda d, s, n: once("alltoall", d[:3], s[: 4 * n]), "alltoall: dest has 3 elements, {n4} are needed"),
    "alltoall in place": (lambda d, s, n: once("alltoall", d[:n], d[: 2 * n]), "alltoall: dest must not be source"),
    "fcollect into too little": (lambda d, s, n: once("fcollect", d[: 4 * n - 1], s[:4]), "dest has {n3} elements, {n4} are needed"),
    "collect into too little": (lambda d, s, n: once("collect", d[: 4 * n - 1], s[:4]), "dest has {n3} elements, {n4} are needed"),
    "broadcast into too little": (lambda d, s, n: broadcast(d[:4], s[:5]), "broadcast: dest has 4 elements, 5 are needed for a team"),
    "a root behind the last": (lambda d, s, n: broadcast(d, s, n), "broadcast: root must be 0 to {last}, not {n}"),
    "a negative root": (lambda d, s, n: broadcast(d, s, -1), "broadcast: root must be 0 to {last}, not -1"),
    "a channel behind the last": (lambda d, s, n: broadcast(d, s, 0, 256), "broadcast: channel must be 0 to "),
    "a negative channel": (lambda d, s, n: broadcast(d, s, 0, -1), "PGAS_CHANNELS), not -1"),
    "a part behind the last": (lambda d, s, n: reduce_part[1, 32](d, s, 3, 3), "reduce_block: part must be (i, k) with 0 <= i < k, but"),
    "a negative part": (lambda d, s, n: broadcast_part[1, 32](d, s, -1, 2), "0 <= i < k, but i is -1 and k is 2"),
    "a part of none": (lambda d, s, n: reduce_part[1, 32](d, s, 0, 0), "0 <= i < k, but i is 0 and k is 0"),
    "a part of less than none": (lambda d, s, n: broadcast_part[1, 32](d, s, 0, -2), "0 <= i < k, but i is 0 and k is -2"),
    "collect in place": (lambda d, s, n: once("collect", d, d[:4]), "collect: dest must not be source"),
    "fcollect of another's part": (lambda d, s, n: others(once, "fcollect", d[: 4 * n], d[:4]), ": dest must not be source"),
    "reducescatter into another's part": (lambda d, s, n: others(summed, "reducescatter", d[:4], d[: 4 * n]), ": dest must not be source"),
    "reduce into too little": (lambda d, s, n: summed("reduce", d[:4], s[:5]), "reduce: dest has 4 elements, 5 are needed for a team"),
    "reducescatter of too little": (lambda d, s, n: summed("reducescatter", d[:4], s[: 4 * n - 1]), "source has {n3} elements, {n4}"),
    "inscan into too little": (lambda d, s, n: summed("inscan", d[:4], s[:5]), "inscan: dest has 4 elements, 5 are needed"),
    "exscan into too little": (lambda d, s, n: summed("exscan", d[:4], s[:5]), "exscan: dest has 4 elements, 5 are needed"),
    "maxloc of three columns": (
        lambda d, s, n: once("maxloc", d[:12].reshape(4, 3), s[:12].reshape(4, 3)),
        "maxloc: dest must have 2 columns, not 3",
    ),
    "minloc into too little": (lambda d, s, n: once("minloc", d[:6].reshape(3, 2), s[:8].reshape(4, 2)), "dest has 6 elements, 8"),
    "a team that does not exist": (lambda d, s, n: once("fcollect", d, s[:1], 77), "fcollect: team 77 does not exist"),
    "a negative team": (lambda d, s, n: number_in[1, 1](-1, d), "team_my_pe: team -1 does not exist"),
    "alltoallv in place": (lambda d, s, n: exchanged(d, d, (1, 0, 1, 0)), "alltoallv: dest must not be source"),
    "alltoallv beyond dest": (lambda d, s, n: exchanged(d, s, (4, 61, 4, 0)), "alltoallv: dest has 64 elements, 65 are needed"),
    "alltoallv beyond source": (lambda d, s, n: exchanged(d, s, (4, 0, 4, 61)), "alltoallv: source has 64 elements, 65 are needed"),
    "a negative count": (lambda d, s, n: exchanged(d, s, (4, 0, -1, 4)), "alltoallv: source_counts or source_displs has a negative"),
    "a negative displacement": (lambda d, s, n: exchanged(d, s, (4, -1, 4, 0)), "alltoallv: dest_counts or dest_displs has a negative"),
    "more than the receiver takes": (
        lambda d, s, n: exchanged(d, s, (3, 0, [0] * (n - 1) + [4], 0)),
        "source_counts sends 4 elements to PE {last}, whose dest_counts allows 3",
    ),
}  # fmt: skip
WITH_PEERS = ("alltoall with a rest", *(name for name in CALLS if "in place" in name or "another" in name))


@checklist("Collectives", "what does not fit is refused")
@pytest.mark.pgas_unordered("the calls are wrong on purpose")
@pytest.mark.parametrize("name", CALLS)
def test_refused_when_called(heap, name):
    """On every PE; dest is as it was, and after reset() collectives work."""
    n, (call, wanted) = pgas.n_pes(), CALLS[name]
    if n == 1 and name in WITH_PEERS:
        pytest.skip("capability missing: a second PE")
    dest, source = Watched(heap, 64, np.int32), heap.full(64, 1, np.int32)
    pgas.barrier_all()
    text = "nothing was refused"
    try:
        call(dest.array, source, n)
        pgas.synchronize()
    except pgas.DeviceError as error:
        text = Words(error)
    pgas.reset()
    words = wanted.format(n=n, last=n - 1, n1=n + 1, n3=4 * n - 1, n4=4 * n)
    everywhere(None if words in text else f"{text!r} for {words!r}")
    dest.check()
    reducing("reduce", "_warp", "SUM")[1, 32](0, dest.array[:5], source[:5])
    dest.holds(0, np.full(5, n, np.int32))


#: Calls on the host with dest at source's address, of (dest, zeros); whether member 0 is refused, too.
IN_PLACE = {
    "alltoall": (lambda d, counts: pgas.alltoall(0, d, d), True),
    "alltoallv": (lambda d, counts: pgas.alltoallv(0, d, counts, counts, d, counts, counts), True),
    "collect": (lambda d, counts: pgas.collect(0, d, d[:4]), True),
    "fcollect": (lambda d, counts: pgas.fcollect(0, d, d[:4]), False),
    "reducescatter": (lambda d, counts: pgas.reducescatter(0, d[:4], d, pgas.SUM), False),
}


@needs_peer
@checklist("Collectives", "what does not fit is refused")
@pytest.mark.parametrize("name", IN_PLACE)
def test_refused_on_the_host(heap, name):
    """At the call and without effect: the next collective is right."""
    n, (call, by_all) = pgas.n_pes(), IN_PLACE[name]
    dest, one, counts = Watched(heap, 4 * n, np.int32), heap.full(4, 1, np.int32), heap.zeros(n, np.int64)
    pgas.barrier_all()
    text = "nothing was refused"
    try:
        if by_all or pgas.my_pe():
            call(dest.array, counts)
    except ValueError as error:
        text = Words(error)
    everywhere(None if f"pgas.{name}: dest must not be source" in text or not (by_all or pgas.my_pe()) else f"{text!r}")
    dest.check()
    pgas.fcollect(0, dest.array, one)
    dest.holds(0, np.full(4 * n, 1, np.int32))


#: Calls on the host with elements that the operation does not have: the call, dtype, and the words of the error.
ELEMENTS = {
    "bits of floats": (lambda d: pgas.reduce(0, d[:4], d[4:], pgas.AND), "f4", "pgas.reduce: op AND takes integers, not elements of type"),
    "products of pairs": (
        lambda d: pgas.inscan(0, d[:4], d[4:], pgas.PROD),
        "c8",
        "pgas.inscan: op PROD takes integers or floats, not elements",
    ),
    "sums of bools": (
        lambda d: pgas.exscan(0, d[:4], d[4:], pgas.SUM),
        "?",
        "pgas.exscan: op SUM takes integers, floats, or complex numbers",
    ),
    "a row": (lambda d: pgas.maxloc(0, d[:4], d[4:]), "f4", "pgas.maxloc: dest must be a C-contiguous array of shape (n, 2), of 32 or"),
    "bytes": (lambda d: pgas.minloc(0, d[:4].reshape(2, 2), d[4:].reshape(2, 2)), "i1", "pgas.minloc: dest must be a C-contiguous array"),
}


@checklist("Collectives", "what does not fit is refused")
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_refused_on_the_host(heap, name):
    call, dtype, wanted = ELEMENTS[name]
    array = heap.zeros(8, np.dtype(dtype))
    with pytest.raises(TypeError) as caught:
        call(array)
    assert wanted in Words(caught.value)
