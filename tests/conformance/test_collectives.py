"""Collectives: the result at every member by size, type, op and scope, on teams and channels; no byte beside it changes."""

import functools
import hashlib
import time

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import (
    BLOCK,
    PARTICLE,
    PIXEL,
    POINT,
    WARP,
    Watched,
    checklist,
    difference,
    equal,
    everywhere,
    launch_together,
    name_of,
    needs,
    needs_peer,
    payload,
)  # fmt: skip
from conformance.collectives import BLOCK_FIRST, BY_NIC, LL_BYTES, OPS, SCOPES, THREADS, core, folded, kernel, numbers, reducing, taken

pytestmark = needs("team_split_strided", "alltoall_block")

#: One type of elements for each size and alignment that kernels copy differently.
MOVED = [np.dtype(d) for d in ("uint8", "float16", "int32", "float64", "complex128")] + [PIXEL, POINT, PARTICLE]
MOVES = ("broadcast", "fcollect", "alltoall", "collect")
SLACK = 20  # elements around dest

ROUNDS = 30 if pgas.SIMULATOR else 2000


@pytest.fixture
def backwards():
    """All PEs, the last one first."""
    n = pgas.n_pes()
    team = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
    yield team
    pgas.team_destroy(team)


def shares(name, size, team):
    """Return the lengths of source and dest if each member sends ``size`` elements to each other."""
    n = team.n_pes
    return size * (n if name in ("alltoall", "reducescatter") else 1), size * (n if name in ("alltoall", "fcollect") else 1)


def collected(size, q):
    """Return the number of elements that member q gives to collect; members differ, and member 0 gives none."""
    return size * (q % 3)


@functools.cache
def broadcasting(scope):
    call = getattr(pgas, "broadcast" + scope)

    @pgas.jit
    def once(team, dest, source, root):
        call(team, dest, source, root)

    return once


@functools.cache
def dividing(name, op="SUM"):
    """Return a kernel of (team, dest, source, root) whose blocks call a collective together: each has a part, and a channel of its own."""
    call, op = getattr(pgas, name + "_block"), getattr(pgas, op)
    if name == "broadcast":

        def once(team, dest, source, root):
            call(team, dest, source, root, cuda.blockIdx.x, (cuda.blockIdx.x, cuda.gridDim.x))

    elif name in ("reduce", "reducescatter"):

        def once(team, dest, source, root):
            call(team, dest, source, op, cuda.blockIdx.x, (cuda.blockIdx.x, cuda.gridDim.x))

    else:

        def once(team, dest, source, root):
            call(team, dest, source, cuda.blockIdx.x, (cuda.blockIdx.x, cuda.gridDim.x))

    return pgas.jit(once)


def move(heap, name, team, dtype, size, scope, *, shift=0, root=0, blocks=0):
    """Move payloads between members; compare dest and the elements around it. blocks: number of blocks that have a part each."""
    me, n = team.my_pe, team.n_pes
    count, room = shares(name, size, team)
    counts = [collected(size, q) if name == "collect" else count for q in range(n)]
    sources = [payload(counts[q], dtype, 100 * size + team.pes[q]) for q in range(n)]
    expected = taken(name, sources, me, root=root)
    source = heap.zeros(max(counts) + 1 + shift, dtype)  # of the same length on every member, as arrays of the heap are
    dest = Watched(heap, max(room, expected.size) + 2 * SLACK, dtype)
    origin = source[shift : shift + counts[me]]
    if counts[me]:
        origin.copy_to_device(sources[me])
    pgas.barrier_all()
    to = dest.array[SLACK : SLACK + expected.size] if expected.size else origin  # on a GPU an empty array has no address
    if blocks:
        launch_together(dividing(name), blocks, BLOCK, team, to, origin, root)
    elif name == "broadcast":
        launch_together(broadcasting(scope), 1, THREADS[scope], team, to, origin, root)
    else:
        launch_together(kernel(name, scope), 1, THREADS[scope], team, to, origin)
    dest.holds(SLACK, expected)
    equal(origin, sources[me], "source")
    heap.free(source)
    heap.free(dest.array)


@checklist("Collectives", "broadcast", "fcollect and alltoall", "collect of different sizes", "every type by every collective")
@pytest.mark.parametrize("dtype", core(MOVED, MOVED[0], PARTICLE), ids=name_of)
@pytest.mark.parametrize("name", MOVES)
def test_every_dtype(heap, backwards, name, dtype):
    """Small and large, with dest and source aligned differently, on two teams."""
    large = LL_BYTES // dtype.itemsize + 3
    for team in (pgas.TEAM_WORLD, backwards):
        for size, shift in ((1, 0), (7, 1), (large, 0), (large, 1)):
            move(heap, name, team, dtype, size, "_block", shift=shift, root=team.n_pes - 1)


@checklist("Collectives", "broadcast", "fcollect and alltoall", "collect of different sizes", "sizes around every protocol's border")
@BLOCK_FIRST
@pytest.mark.parametrize("name", MOVES)
def test_sizes(heap, name, scope):
    """Sizes around a word, a line, staging, and a chunk of rings and trees."""
    sizes = [0, 8, 16, LL_BYTES - 1, LL_BYTES, LL_BYTES + 1, 2 * LL_BYTES + 1]
    if scope == "_block" and BY_NIC:
        sizes += [(64 << 10) - 5, (64 << 10) + 5, (256 << 10) - 5, (256 << 10) + 5]
    for size in sizes:
        move(heap, name, pgas.TEAM_WORLD, np.dtype(np.uint8), size, scope, shift=size % 2)
        if size % 8 == 0:
            move(heap, name, pgas.TEAM_WORLD, np.dtype(np.int64), size // 8, scope)


@checklist("Collectives", "broadcast")
@SCOPES
def test_every_root(heap, backwards, scope):
    for root in range(pgas.n_pes()):
        for size in (3, LL_BYTES // 4 + 1):
            move(heap, "broadcast", backwards, np.dtype(np.int32), size, scope, root=root)


# --------------------------------------------------------------------------------------------------------------- reductions


REDUCTIONS = ("reduce", "reducescatter", "inscan", "exscan")
INTEGERS = [np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
OF_FLOATS = ("SUM", "PROD", "MIN", "MAX")
BITWISE = ("AND", "OR", "XOR")

#: Every type with every op. A GPU compiles each pair, so only reduce() is tested with all.
PAIRS = [
    *((dtype, op) for dtype in INTEGERS for op in OPS), *((dtype, op) for dtype in FLOATS for op in OF_FLOATS),
    *((np.dtype(np.bool_), op) for op in BITWISE), (np.dtype(np.complex64), "SUM"), (np.dtype(np.complex128), "SUM"),
]  # fmt: skip
FEW = [
    (np.dtype(dtype), op)
    for dtype, op in (("int32", "SUM"), ("float16", "SUM"), ("uint8", "MAX"), ("float64", "MIN"), ("int64", "PROD"), ("uint16", "XOR"))
]
#: Odd numbers of elements that end within a word.
ROUNDED = [(np.dtype(np.uint8), "MAX"), (np.dtype(np.int16), "SUM"), (np.dtype(np.float16), "SUM"), (np.dtype(np.float64), "MAX")]
CORE = [(np.dtype(np.float16), "SUM"), (np.dtype(np.float64), "SUM"), (np.dtype(np.uint8), "MAX"), (np.dtype(np.bool_), "AND")]


def reduced(heap, name, team, dtype, size, scope, op, *, shift=0, in_place=False, nan=False, blocks=0):
    """Reduce numbers; compare dest and the elements around it. nan: each member has some NaN, where others have none. blocks: of move()."""
    me, n = team.my_pe, team.n_pes
    count, room = shares(name, size, team)
    sources = [numbers(count, dtype, 100 * size + team.pes[q]) for q in range(n)]
    for q in range(n if nan else 0):
        sources[q][q :: n + 2] = np.nan
    expected = taken(name, sources, me, op=op)
    dest = Watched(heap, count + 2 * SLACK, dtype)
    start = SLACK + shift
    if in_place:
        dest.array[start : start + count].copy_to_device(sources[me])
        dest.expect(start, sources[me])
        source = dest.array[start : start + count]
        start += me * room if name == "reducescatter" else 0
    else:
        source = heap.array(sources[me])
    pgas.barrier_all()
    to = dest.array[start : start + room]
    if blocks:
        launch_together(dividing(name, op), blocks, BLOCK, team, to, source, 0)
    else:
        launch_together(reducing(name, scope, op), 1, THREADS[scope], team, to, source)
    dest.holds(start, expected)
    if not in_place:
        heap.free(source)
    heap.free(dest.array)


@checklist("Collectives", "reductions", "every type by every op", "members combine in their order")
@pytest.mark.parametrize("pair", core(PAIRS, *CORE), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def test_every_op(heap, backwards, pair):
    """Sums of floats have the bits of an addition in the order of members."""
    dtype, op = pair
    for name in REDUCTIONS if pgas.SIMULATOR else REDUCTIONS[:1]:
        for team in (pgas.TEAM_WORLD, backwards):
            reduced(heap, name, team, dtype, 9, "_block", op)
    reduced(heap, "reduce", backwards, dtype, LL_BYTES // dtype.itemsize + 5, "_block", op)


@checklist("Collectives", "reductions", "reducescatter", "scans", "every type by every op")
@pytest.mark.parametrize("pair", core(FEW, FEW[0]), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(heap, backwards, name, pair):
    """Small and large, aligned differently."""
    dtype, op = pair
    large = LL_BYTES // dtype.itemsize
    for size, shift in ((1, 0), (5, 1), (large - 1, 0), (large, 1), (large + 1, 0), (large + 1, 1)):
        reduced(heap, name, pgas.TEAM_WORLD, dtype, size, "_block", op, shift=shift)
    reduced(heap, name, backwards, dtype, 3 * large + 2, "_block", op)


@checklist("Collectives", "reductions", "reducescatter", "scans")
@pytest.mark.parametrize("dtype", core(["float32", "float64"], "float32"))
@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_nan(heap, backwards, op, dtype):
    """NaN of any member is the result, as NumPy's minimum and maximum have it, whatever the order of members."""
    for name in REDUCTIONS:
        for size in (5, 5 * LL_BYTES // 4):
            reduced(heap, name, backwards, np.dtype(dtype), size, "_block", op, nan=True)


@checklist("Collectives", "reductions", "reducescatter", "scans", "sizes around every protocol's border")
@BLOCK_FIRST
@pytest.mark.parametrize("name", REDUCTIONS)
def test_sizes_of_reductions(heap, name, scope):
    """Integers, whose sums are exact in any order; large ones go around a ring through a NIC, in pieces."""
    n, itemsize = pgas.n_pes(), 4
    sizes = [0, 1, LL_BYTES // itemsize, LL_BYTES // itemsize + 1]
    if name == "reduce" and scope == "_block":
        part = 2 * LL_BYTES * n // itemsize
        sizes += [part - 1, part, part + 1, part + 7]
        sizes += [(64 << 10) * n // itemsize + 3, 3 * (64 << 10) * n // itemsize + 1] if BY_NIC else []
    for size in sizes:
        reduced(heap, name, pgas.TEAM_WORLD, np.dtype(np.int32), size, scope, "SUM")


@pytest.mark.skipif(not BY_NIC, reason="rounds through a NIC")
@checklist("Collectives", "reducescatter", "sizes around every protocol's border")
@pytest.mark.parametrize("pair", core(ROUNDED, ROUNDED[0]), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def test_rounds_of_reducescatter(heap, n, backwards, pair):
    """Sizes around one, two, and several rounds, which are as large as staging allows."""
    dtype, op = pair
    for senders in {n - 1, min(n - 1, 2), 1}:
        half = n * LL_BYTES // senders // dtype.itemsize  # of a slot, if so many members send to each
        for size in (half, half + 1, 2 * half, 2 * half + 1, 4 * half - 1, 4 * half + 3):
            reduced(heap, "reducescatter", backwards, dtype, size, "_block", op, shift=size % 2)


@checklist("Collectives", "reductions", "reducescatter", "scans", "in place")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_in_place(heap, backwards, name):
    """dest is source; in reducescatter it is the member's own part of source."""
    for size in (3, LL_BYTES // 8 + 1, (2 * pgas.n_pes() + 1) * LL_BYTES // 8):
        for team in (pgas.TEAM_WORLD, backwards):
            reduced(heap, name, team, np.dtype(np.int64), size, "_block", "SUM", in_place=True)


@checklist("Collectives", "reductions", "reducescatter", "in place", "sizes around every protocol's border")
@pytest.mark.parametrize("name", ["reduce", "reducescatter"])
def test_reductions_by_one_thread(heap, backwards, name):
    """Of elements whose sums are rounded, in member order; dest is another array, then source. Sizes of 16 bytes and others.

    Through a NIC, the order of larger ones may be another one.
    """
    parts = 1 if name == "reducescatter" else pgas.n_pes()
    sizes = [128, 144, 2 * LL_BYTES * parts - 16, 2 * LL_BYTES * parts, 2 * LL_BYTES * parts + 16, 1000, 1008]
    most = LL_BYTES if name == "reducescatter" else 2 * LL_BYTES * parts
    for nbytes in (nbytes for nbytes in sizes if nbytes <= most or not BY_NIC):
        for in_place in (False, True):
            reduced(heap, name, backwards, np.dtype(np.float64), nbytes // 8, "", "SUM", in_place=in_place)


@checklist("Collectives", "reductions", "reducescatter")
@pytest.mark.parametrize("name", ["reduce", "reducescatter"])
def test_what_was_sent_without_lines_is_never_a_line(heap, me, n, name):
    """Data of one thread that looks like lines of later collectives, which wait because the other members come late."""
    team = pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n)  # whose first epoch is 2
    lines, turns = 16, 4
    words = np.repeat(4 + 3 * np.arange(turns), 2 * lines // turns) << 32  # pairs like four lines of the last epoch of each turn
    large = heap.array(np.tile(words, n))
    small, dest, sums = heap.array(np.arange(lines, dtype=np.int64) + me), heap.zeros(2 * lines * n, np.int64), heap.zeros(lines, np.int64)
    expected = n * np.arange(lines) + n * (n - 1) // 2
    to = dest if name == "reduce" else dest[: 2 * lines]
    try:
        for turn in range(turns):
            pgas.barrier_all()
            launch_together(reducing(name, "", "SUM"), 1, 1, team, to, large)
            launch_together(reducing("reduce", "", "SUM"), 1, 1, team, sums, small)
            pgas.barrier_all()
            if me:
                time.sleep(0.1)
            launch_together(reducing("reduce", "", "SUM"), 1, 1, team, sums, small)
            everywhere(difference(sums.copy_to_host(), expected, f"turn {turn}"))
    finally:
        pgas.team_destroy(team)


@checklist("Collectives", "broadcast", "fcollect and alltoall", "in place")
@pytest.mark.parametrize("size", [3, LL_BYTES // 4 + 1])
def test_moves_in_place(heap, backwards, size):
    """broadcast: dest is source. fcollect: source is the member's own part of dest."""
    team, n = backwards, backwards.n_pes
    sources = [payload(size, np.int32, q) for q in range(n)]
    both = Watched(heap, size + 9, np.int32)
    both.array[5 : 5 + size].copy_to_device(sources[team.my_pe])
    whole = Watched(heap, n * size + 9, np.int32)
    own = 5 + team.my_pe * size
    whole.array[own : own + size].copy_to_device(sources[team.my_pe])
    pgas.barrier_all()
    launch_together(broadcasting("_block"), 1, BLOCK, team, both.array[5 : 5 + size], both.array[5 : 5 + size], n - 1)
    launch_together(kernel("fcollect", "_block"), 1, BLOCK, team, whole.array[5 : 5 + n * size], whole.array[own : own + size])
    both.holds(5, sources[n - 1])
    whole.holds(5, np.concatenate(sources))


@checklist("Collectives", "reductions", "all members get the same bits")
@pytest.mark.parametrize("dtype", core(["float16", "bfloat16", "float32", "float64"], "float16", "float32"))
def test_all_members_get_the_same_bits(heap, dtype):
    """For every size and path. Sums of 16-bit floats are those in float32, rounded once."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="capability missing: ml_dtypes, without which NumPy has no bfloat16")
    n, itemsize = pgas.n_pes(), heap.zeros(1, dtype).dtype.itemsize
    for size in (11, LL_BYTES // itemsize, LL_BYTES // itemsize + 1, 2 * LL_BYTES * n // itemsize + 9):
        dest = heap.zeros(size, dtype)
        sources = [numbers(size, dest.dtype, 7 + pe) for pe in range(n)]
        source = heap.array(sources[pgas.my_pe()], dtype)
        pgas.barrier_all()
        launch_together(reducing("reduce", "_block", "SUM"), 1, BLOCK, pgas.TEAM_WORLD, dest, source)
        found = dest.copy_to_host()
        digests = pgas.allgather_object(hashlib.blake2b(found.tobytes()).hexdigest())
        everywhere(None if len(set(digests)) == 1 else f"{size} elements: members got different bits")
        if itemsize == 2:
            everywhere(difference(found, folded("SUM", sources), f"{size} elements"))
        exact = np.sum([s.astype(np.float64) for s in sources], axis=0)
        close = np.allclose(found.astype(np.float64), exact, rtol=1e-2 if itemsize == 2 else 1e-5, atol=0.2 if itemsize == 2 else 1e-4)
        everywhere(None if close else f"{size} elements: not the sum")


@checklist("Collectives", "maxloc and minloc")
@pytest.mark.parametrize("dtype", core(["float64", "int32", "float32", "uint64"], "float64"))
@pytest.mark.parametrize("name", ["maxloc", "minloc"])
def test_locations(heap, backwards, name, dtype):
    """Among equal values the least location wins, whichever member has it. NaN wins over all numbers."""
    team, n = backwards, backwards.n_pes
    for rows in (1, 4, LL_BYTES // 8 + 3):
        values = np.stack([payload(rows, np.uint8, 3 + q).astype(dtype) // 64 for q in range(n)])
        places = np.stack([(np.arange(rows) * 7 + 5 * (n - q)) % 11 + 20 * q for q in range(n)]).astype(dtype)
        for q in range(n if values.dtype.kind == "f" else 0):
            values[q, q::5] = np.nan
        wanted = values.max(0) if name == "maxloc" else values.min(0)
        holds = (values == wanted) | ((values != values) & (wanted != wanted))
        expected = np.stack([wanted, np.where(holds, places, 10_000).min(0)], axis=1).astype(dtype)
        dest = Watched(heap, (rows + 6, 2), dtype)
        source = heap.array(np.ascontiguousarray(np.stack([values[team.my_pe], places[team.my_pe]], axis=1)))
        pgas.barrier_all()
        launch_together(kernel(name, "_block"), 1, BLOCK, team, dest.array[3 : 3 + rows], source)
        dest.holds(6, expected)


# ---------------------------------------------------------------------------------------------------------------- alltoallv


@functools.cache
def exchanging(scope):
    """As a mixture of experts does: alltoall exchanges counts, then alltoallv elements."""
    counts, elements = getattr(pgas, "alltoall" + scope), getattr(pgas, "alltoallv" + scope)

    @pgas.jit
    def exchange(team, dest, theirs, places, source, mine, displs):
        counts(team, theirs, mine)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            at = 0
            for q in range(theirs.size):
                places[q] = at
                at += theirs[q]
        cuda.syncthreads()
        elements(team, dest, theirs, places, source, mine, displs)

    return exchange


@checklist("Collectives", "alltoallv: counts and displacements on the device")
@SCOPES
@pytest.mark.parametrize("dtype", core([np.dtype(np.uint8), np.dtype(np.float32), PARTICLE], np.dtype(np.uint8)), ids=name_of)
def test_alltoallv(heap, backwards, scope, dtype):
    """Every pair of members has its own count, some have 0. dest has no room to spare."""
    team, n, me = backwards, backwards.n_pes, backwards.my_pe
    for scale in (1, 400):
        counts = np.array([[(3 * p + 5 * q + 1) % 4 * scale + (p == q) for q in range(n)] for p in range(n)], np.int32)
        displs = [np.concatenate([[2], 2 + np.cumsum(row[::-1])])[:n][::-1].astype(np.int32) for row in counts]  # the last member's first
        sources = [payload(int(counts.sum(1).max()) + 4, dtype, 50 + p) for p in range(n)]
        expected = np.concatenate([sources[p][displs[p][me] : displs[p][me] + counts[p][me]] for p in range(n)])
        dest = Watched(heap, int(counts.sum(0).max()) + 2 * SLACK, dtype)
        theirs, places = heap.zeros(n, np.int32), heap.zeros(n, np.int32)
        mine, from_ = heap.array(counts[me]), heap.array(np.where(counts[me] == 0, np.int32(1 << 20), displs[me]))  # of nothing: anywhere
        source = heap.array(sources[me])
        pgas.barrier_all()
        args = team, dest.array[SLACK : SLACK + expected.size], theirs, places, source, mine, from_
        launch_together(exchanging(scope), 1, THREADS[scope], *args)
        dest.holds(SLACK, expected)


@pgas.jit
def send_some(team, dest, dest_counts, displs, source, source_counts):
    pgas.alltoallv_block(team, dest, dest_counts, displs, source, source_counts, displs)


@checklist("Collectives", "alltoallv: counts and displacements on the device")
def test_alltoallv_of_less_than_there_is_room_for(heap, me, n):
    room = 8
    dest, source = Watched(heap, n * room, np.int32), heap.array(np.arange(n * room, dtype=np.int32) + 1000 * me)
    displs = heap.array(np.arange(n) * room)
    some, most = heap.array(np.array([(me + q) % 4 for q in range(n)])), heap.full(n, room, np.int64)
    pgas.barrier_all()
    launch_together(send_some, 1, BLOCK, pgas.TEAM_WORLD, dest.array, most, displs, source, some)
    for q in range(n):
        dest.expect(q * room, 1000 * q + me * room + np.arange((me + q) % 4, dtype=np.int32))
    dest.check()


# ------------------------------------------------------------------------------------------------------- channels and teams


BLOCKS = 3 if pgas.SIMULATOR else 16


@pgas.jit
def blocks_by_channel(team, dest, source, total, rounds):
    """Every block has its own slice and channel, and waits for no other block of its PE."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    for _ in range(rounds):
        pgas.alltoall_block(team, dest[b], source[b], b)
        cuda.syncthreads()
        for i in range(t, total.shape[1], cuda.blockDim.x):
            total[b, i] += dest[b, i]
        cuda.syncthreads()
        for i in range(t, total.shape[1], cuda.blockDim.x):
            source[b, i] += 1
        cuda.syncthreads()


@checklist("Collectives", "blocks at once on channels of one team")
@pytest.mark.parametrize("each", [1, 40, LL_BYTES // 8 + 5])
def test_blocks_on_channels(heap, me, n, each):
    """Collectives follow each other without a barrier; each brings the sender's elements of its round."""
    rounds = ROUNDS // 2 if each < 100 else 3
    first = np.arange(BLOCKS * n * each).reshape(BLOCKS, n, each)
    dest, source = heap.zeros((BLOCKS, n * each), np.int64), heap.array((first + 10_000_000 * me).reshape(BLOCKS, n * each))
    total = heap.zeros((BLOCKS, n * each), np.int64)
    pgas.barrier_all()
    if each > LL_BYTES // 8:  # a second round could overwrite dest before it is added
        rounds = 1
    launch_together(blocks_by_channel, BLOCKS, BLOCK, pgas.TEAM_WORLD, dest, source, total, rounds)
    came = np.concatenate([first[:, me] + 10_000_000 * q for q in range(n)], axis=1)
    equal(total, rounds * came + rounds * (rounds - 1) // 2)


PARTS = ("alltoall", "broadcast", "fcollect", "reduce", "reducescatter")

#: Bytes for each member: only the first block has a part; the last one has none; it has a smaller one, through staging unlike the others'.
DIVIDED = [0, 1, 129, (BLOCKS - 1) * 128 + 1, BLOCKS * LL_BYTES, BLOCKS * LL_BYTES + 1, 2 * BLOCKS * LL_BYTES + 77]


def divided(heap, name, team, dtype, size, *, shift=0, **options):
    """Move or reduce a message by blocks that have a part each."""
    if name in MOVES:
        move(heap, name, team, np.dtype(dtype), size, "_block", shift=shift, blocks=BLOCKS, **options)
    else:
        reduced(heap, name, team, np.dtype(dtype), size, "_block", "SUM", shift=shift, blocks=BLOCKS, **options)


@checklist("Collectives", "blocks at once with parts of a message", "sizes around every protocol's border")
@pytest.mark.parametrize("name", PARTS)
def test_blocks_on_channels_have_parts(heap, backwards, name):
    """The result is that of one block, also at odd addresses. Of floats, only where the order of additions is that of members."""
    for nbytes in DIVIDED:
        divided(heap, name, pgas.TEAM_WORLD, np.uint8, nbytes, shift=nbytes % 2)
    dtype = np.int64 if name == "reducescatter" and BY_NIC else np.float64
    for nbytes in DIVIDED[3:]:
        divided(heap, name, backwards, dtype, nbytes // 8, **({"root": pgas.n_pes() - 1} if name == "broadcast" else {}))
    if name in MOVES:
        divided(heap, name, backwards, PARTICLE, BLOCKS * LL_BYTES // PARTICLE.itemsize + 5, shift=1)


@checklist("Collectives", "blocks at once with parts of a message", "in place")
@pytest.mark.parametrize("size", [70, BLOCKS * LL_BYTES // 4 + 1])
def test_parts_in_place(heap, backwards, size):
    """As without parts: dest is source, or its own part of dest is, or dest is its own part of source."""
    team, n = backwards, backwards.n_pes
    for name in ("reduce", "reducescatter"):
        divided(heap, name, team, np.int32, size, in_place=True)
    sources = [payload(size, np.int32, q) for q in range(n)]
    both, whole, own = Watched(heap, size + 9, np.int32), Watched(heap, n * size + 9, np.int32), 5 + team.my_pe * size
    both.array[5 : 5 + size].copy_to_device(sources[team.my_pe])
    whole.array[own : own + size].copy_to_device(sources[team.my_pe])
    pgas.barrier_all()
    launch_together(dividing("broadcast"), BLOCKS, BLOCK, team, both.array[5 : 5 + size], both.array[5 : 5 + size], n - 1)
    launch_together(dividing("fcollect"), BLOCKS, BLOCK, team, whole.array[5 : 5 + n * size], whole.array[own : own + size], 0)
    both.holds(5, sources[n - 1])
    whole.holds(5, np.concatenate(sources))


@checklist("Collectives", "blocks at once with parts of a message", "broadcast")
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_parts_of_a_large_broadcast_on_channels(heap, dtype):
    """Members may each load a slice and pass it on if dest is aligned, which it is not for bytes."""
    size = (1 << 20) // np.dtype(dtype).itemsize + 5
    divided(heap, "broadcast", pgas.TEAM_WORLD, dtype, size, root=pgas.n_pes() - 1)


@pgas.jit
def flood_of_parts(team, dest, source, wrong, apart, start, end, late):
    """Blocks move one message after another together. A block of a member is late; all threads look at some elements of the result."""
    b, k, me, n = cuda.blockIdx.x, cuda.gridDim.x, pgas.team_my_pe(team), pgas.team_n_pes(team)
    grid, first, step, size = cuda.cg.this_grid(), apart * cuda.grid(1), apart * cuda.gridsize(1), source.size // n
    for r in range(start, end):
        for i in range(first, source.size, step):
            source[i] = 1000 * r + 100 * me + i // size
        grid.sync()
        pgas.team_sync_block(team, b)  # all members have looked at dest
        if r % n == me and r % k == b and cuda.threadIdx.x == 0:
            for _ in range(late):
                pgas.test(wrong, 0, pgas.EQ, -1)
        kind = r % 5
        if kind == 0:
            pgas.alltoall_block(team, dest, source, b, (b, k))
        elif kind == 1:
            pgas.broadcast_block(team, dest[:size], source[:size], (r + 1) % n, b, (b, k))
        elif kind == 2:
            pgas.reduce_block(team, dest[:size], source[:size], pgas.SUM, b, (b, k))
        elif kind == 3:
            pgas.reducescatter_block(team, dest[:size], source, pgas.SUM, b, (b, k))
        else:
            pgas.fcollect_block(team, dest, source[:size], b, (b, k))
        grid.sync()
        for i in range(first, dest.size if kind == 0 or kind == 4 else size, step):
            q = i // size
            if kind == 0:
                expected = 1000 * r + 100 * q + me
            elif kind == 1:
                expected = 1000 * r + 100 * ((r + 1) % n)
            elif kind == 4:
                expected = 1000 * r + 100 * q
            else:
                expected = 1000 * r * n + 50 * n * (n - 1) + (n * me if kind == 3 else 0)
            if dest[i] != expected:
                cuda.atomic.add(wrong, 0, 1)


@checklist("Collectives", "blocks at once with parts of a message", "one after another without barriers")
@pytest.mark.parametrize(("each", "apart"), [(48, 3), (LL_BYTES // 8 + 16, 3), (1 + (1 << 17) // BLOCKS, 1 << 10)], ids=["48", "LL", "1M"])
def test_floods_of_parts(heap, backwards, each, apart):
    """When the calls of all blocks have returned, dest is complete, and source may be written. Of 1 MiB, a broadcast."""
    n, size, small = pgas.n_pes(), -(-BLOCKS * each // apart) * apart, apart == 3
    dest, source, wrong = heap.zeros(n * size, np.int64), heap.zeros(n * size, np.int64), heap.zeros(1, np.int32)
    pgas.barrier_all()
    rounds, late = (0, ROUNDS // 2) if small else (1, 2), (20 if small else 6000) if pgas.SIMULATOR else 500
    launch_together(flood_of_parts, BLOCKS, BLOCK, backwards, dest, source, wrong, apart, *rounds, late)
    equal(wrong, np.zeros(1, np.int32), "elements of another round")


@pgas.jit
def warps_and_threads_by_channel(team, dest, source, sums, parts, whole):
    """Warps call on their own channels, then single threads, the block, and warps again."""
    w, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    pgas.fcollect_warp(team, dest[w], source[w], w)
    cuda.syncthreads()
    if lane == 0:
        pgas.reduce(team, sums[w], source[w], pgas.SUM, w)
    cuda.syncthreads()
    pgas.broadcast_block(team, parts, source[0], 0, 1)
    cuda.syncthreads()  # the next collective on channel 1 has other callers
    pgas.reduce_warp(team, whole[w], sums[w], pgas.MAX, w)


@checklist("Collectives", "collectives of mixed scopes", "blocks at once on channels of one team")
def test_scopes_one_after_another_on_the_same_channels(heap):
    me, n, warps, size = pgas.my_pe(), pgas.n_pes(), 3, 37
    sources = [payload(warps * size, np.int32, 9 + q).reshape(warps, size) for q in range(n)]
    source, dest = heap.array(sources[me]), heap.zeros((warps, n * size), np.int32)
    sums, whole, parts = heap.zeros((warps, size), np.int32), heap.zeros((warps, size), np.int32), heap.zeros(size, np.int32)
    pgas.barrier_all()
    launch_together(warps_and_threads_by_channel, 1, warps * WARP, pgas.TEAM_WORLD, dest, source, sums, parts, whole)
    equal(dest, np.concatenate(sources, axis=1))
    equal(sums, folded("SUM", sources))
    equal(whole, folded("SUM", sources))
    equal(parts, sources[0][0])


@pgas.jit
def of_rows_and_columns(row, column, dest, source, rounds):
    """Add up rows, then columns, without a barrier in between."""
    for _ in range(rounds):
        pgas.reduce_block(row, dest, source, pgas.SUM)
        cuda.syncthreads()
        pgas.reduce_block(column, source, dest, pgas.SUM)
        cuda.syncthreads()


@checklist("Collectives", "collectives of teams")
@checklist("Teams", "teams one after another and overlapping")
@pytest.mark.parametrize("xrange", [1, 2, 3])
def test_teams_that_overlap(heap, n, xrange):
    """Every PE is in a row and in a column, and calls on both teams by turns."""
    row, column = pgas.team_split_2d(pgas.TEAM_WORLD, xrange)
    dest, source = heap.zeros(12, np.uint64), heap.array(np.arange(12, dtype=np.uint64) + pgas.my_pe())
    image = [np.arange(12, dtype=np.uint64) + pe for pe in range(n)]
    for _ in range(5):
        rows = [functools.reduce(np.add, image[pe // xrange * xrange : (pe // xrange + 1) * xrange]) for pe in range(n)]
        image = [functools.reduce(np.add, rows[pe % xrange :: xrange]) for pe in range(n)]
    pgas.barrier_all()
    launch_together(of_rows_and_columns, 1, BLOCK, row, column, dest, source, 5)
    equal(source, image[pgas.my_pe()])
    for team in (row, column):
        pgas.team_destroy(team)


@pgas.jit
def of_two_teams(one, other, dests, sources):
    """Block 0 calls on one team, block 1 on another, at the same time."""
    b = cuda.blockIdx.x
    pgas.fcollect_block(one if b == 0 else other, dests[b], sources[b])


@checklist("Collectives", "collectives of teams")
def test_two_teams_at_once(heap, me, n, backwards):
    sources = [payload(2 * 21, np.int16, q).reshape(2, 21) for q in range(n)]
    source, dest = heap.array(sources[me]), heap.zeros((2, n * 21), np.int16)
    pgas.barrier_all()
    launch_together(of_two_teams, 2, BLOCK, pgas.TEAM_WORLD, backwards, dest, source)
    equal(dest, np.stack([np.concatenate([s[0] for s in sources]), np.concatenate([s[1] for s in reversed(sources)])]))


@needs_peer
@checklist("Collectives", "collectives of teams")
def test_a_team_of_some(heap):
    """PEs that are no members take no part."""
    n, last = pgas.n_pes(), pgas.n_pes() - 1
    team = pgas.team_create([last, 0])
    dest = Watched(heap, 2 * 5 + 6, np.int32)
    source = heap.full(5, 10 * pgas.my_pe() + 1, np.int32)
    pgas.barrier_all()
    if team is not None:
        kernel("fcollect", "_warp")[1, WARP](team, dest.array[3:13], source)  # not by launch(), which is collective over all PEs
        dest.expect(3, np.repeat(np.array([10 * last + 1, 1], np.int32), 5))
    dest.check()
    pgas.team_destroy(team)
    assert (team is None) == (pgas.my_pe() not in (0, last)), n


@checklist("Collectives", "collectives of teams", "sizes around every protocol's border")
@pytest.mark.parametrize("name", MOVES + REDUCTIONS)
def test_teams_of_one(heap, name):
    """Every PE is a team of its own; the large size is one that goes around a ring through a NIC."""
    team, column = pgas.team_split_2d(pgas.TEAM_WORLD, 1)
    for size in (0, 3, LL_BYTES // 4 + 1, LL_BYTES + 3):
        if name in MOVES:
            move(heap, name, team, np.dtype(np.int32), size, "_block")
        else:
            reduced(heap, name, team, np.dtype(np.int32), size, "_block", "SUM")
    for each in (team, column):
        pgas.team_destroy(each)


# ------------------------------------------------------------------------------------------------------------------- floods


@pgas.jit
def flood(team, dest, source, wrong, rounds, late):
    """Perform collectives of all kinds one after another. Members are late in turn, and check their result before they go on."""
    t, me, n = cuda.threadIdx.x, pgas.team_my_pe(team), pgas.team_n_pes(team)
    size = source.size // n
    for r in range(rounds):
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = 1000 * r + 100 * me + i // size
        cuda.syncthreads()
        if r % n == me and t == 0:  # the slowest thread of the slowest member
            for _ in range(late):
                pgas.test(wrong, 0, pgas.EQ, -1)
        kind = r % 6
        if kind == 0:
            pgas.alltoall_block(team, dest, source)
        elif kind == 1:
            pgas.broadcast_block(team, dest[:size], source[:size], r % n)
        elif kind == 2:
            pgas.reduce_block(team, dest[:size], source[:size], pgas.SUM)
        elif kind == 3:
            pgas.exscan_block(team, dest[:size], source[:size], pgas.SUM)
        elif kind == 4:
            pgas.fcollect_block(team, dest, source[:size])
        else:
            pgas.reducescatter_block(team, dest[:size], source, pgas.SUM)
        cuda.syncthreads()
        for i in range(t, dest.size, cuda.blockDim.x):
            q = i // size
            if kind == 0:
                expected = 1000 * r + 100 * q + me
            elif kind == 1:
                expected = 1000 * r + 100 * (r % n)
            elif kind == 2:
                expected = 1000 * r * n + 50 * n * (n - 1)
            elif kind == 3:
                expected = 1000 * r * me + 50 * me * (me - 1)
            elif kind == 4:
                expected = 1000 * r + 100 * q
            else:
                expected = 1000 * r * n + 50 * n * (n - 1) + n * me
            if (i < size or kind == 0 or kind == 4) and dest[i] != expected:
                cuda.atomic.add(wrong, 0, 1)
        cuda.syncthreads()


@checklist("Collectives", "one after another without barriers")
@pytest.mark.parametrize("size", [1, 70])
def test_floods(heap, n, backwards, size):
    """The fastest member gets as far ahead of the slowest as the protocols allow."""
    dest, source, wrong = heap.zeros(n * size, np.int64), heap.zeros(n * size, np.int64), heap.zeros(1, np.int32)
    for team in (pgas.TEAM_WORLD, backwards):
        pgas.barrier_all()
        launch_together(flood, 1, BLOCK, team, dest, source, wrong, ROUNDS, 20 if pgas.SIMULATOR else 500)
        equal(wrong, np.zeros(1, np.int32), "elements of another round")


@pgas.jit
def flood_of_rounds(team, dest, small, source, wrong, rounds, late):
    """Large reducescatters, whose rounds divide staging by senders, between small collectives, which divide it by members."""
    t, me, n = cuda.threadIdx.x, pgas.team_my_pe(team), pgas.team_n_pes(team)
    for r in range(rounds):
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = 1000 * r + 100 * me + i // dest.size
        cuda.syncthreads()
        if r % n == me and t == 0:
            for _ in range(late):
                pgas.test(wrong, 0, pgas.EQ, -1)
        if r & 1:
            pgas.inscan_block(team, small, source[: small.size], pgas.SUM)
        pgas.reducescatter_block(team, dest, source, pgas.SUM)
        if r & 2:
            pgas.reduce_block(team, small, source[: small.size], pgas.SUM)
        for i in range(t, dest.size, cuda.blockDim.x):
            if dest[i] != 1000 * r * n + 50 * n * (n - 1) + n * me:
                cuda.atomic.add(wrong, 0, 1)
        members = n if r & 2 else me + 1
        for i in range(t, small.size if r & 3 else 0, cuda.blockDim.x):
            if small[i] != 1000 * r * members + 50 * members * (members - 1):
                cuda.atomic.add(wrong, 0, 1)
        cuda.syncthreads()


@checklist("Collectives", "reducescatter", "one after another without barriers")
@pytest.mark.pgas_unordered("in a reducescatter, only a member's own call writes its dest, which is not promised for large messages")
@pytest.mark.parametrize("room", core([1, 2, 3, 5], 5))
def test_floods_of_rounds(heap, n, backwards, room):
    """Reducescatters of one round and of several."""
    size = room * n * LL_BYTES // 8 - 5
    dest, small, source = (heap.zeros(nelems, np.int64) for nelems in (size, min(70, LL_BYTES // 8), n * size))
    wrong = heap.zeros(1, np.int32)
    pgas.barrier_all()
    launch_together(flood_of_rounds, 1, BLOCK, backwards, dest, small, source, wrong, 5 if pgas.SIMULATOR else ROUNDS // 10, 20)
    equal(wrong, np.zeros(1, np.int32), "elements of another round")


@pgas.jit
def flood_of_one(team, dest, source, wrong, rounds, meets):
    """Member 0 broadcasts, waiting for nobody; it overwrites its source as soon as it may. Member 0 of a scan waits for nobody, too."""
    t, me = cuda.threadIdx.x, pgas.team_my_pe(team)
    for r in range(rounds):
        for i in range(t, source.size, WARP):
            source[i] = 1000 * r + 100 * me
        if me and r % 3 == 0 and t == 0:
            for _ in range(20):
                pgas.test(wrong, 0, pgas.EQ, -1)
        if meets:
            pgas.team_sync_warp(team)
        if meets or r % 4:
            pgas.broadcast_warp(team, dest, source, 0)
        else:
            pgas.inscan_warp(team, dest, source, pgas.SUM)
        for i in range(t, source.size, WARP):
            source[i] = -1
        expected = 1000 * r if meets or r % 4 else 1000 * r * (me + 1) + 50 * me * (me + 1)
        for i in range(t, dest.size, WARP):
            if dest[i] != expected:
                cuda.atomic.add(wrong, 0, 1)


@checklist("Collectives", "one after another without barriers")
@pytest.mark.parametrize("size", [3, LL_BYTES // 8 + 5])
def test_floods_of_one_root(heap, backwards, size):
    """Small ones without a meeting, so the root is ahead by as much as the protocol allows."""
    dest, source, wrong = heap.zeros(size, np.int64), heap.zeros(size, np.int64), heap.zeros(1, np.int32)
    meets = size > 3
    pgas.barrier_all()
    launch_together(flood_of_one, 1, WARP, backwards, dest, source, wrong, 5 if meets else ROUNDS, meets)
    equal(wrong, np.zeros(1, np.int32), "elements of another round")


@pgas.jit
def flood_to_others(team, dest, room, source, sent, displs, wrong, rounds):
    """Member 0 sends; the others have nothing to send, so they wait for a flag at once, and look at the data behind it."""
    t, me = cuda.threadIdx.x, pgas.team_my_pe(team)
    for r in range(rounds):
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = 1000 * r + i
        pgas.team_sync_block(team)
        pgas.alltoallv_block(team, dest, room, displs, source, sent, displs)
        for i in range(t, dest.size if me else 0, cuda.blockDim.x):
            if dest[i] != 1000 * r + i:
                cuda.atomic.add(wrong, 0, 1)
        cuda.syncthreads()


@checklist("Collectives", "one after another without barriers", "alltoallv: counts and displacements on the device")
def test_floods_to_others(heap, backwards):
    n, me, size = backwards.n_pes, backwards.my_pe, 300
    dest, source, wrong = heap.zeros(size, np.int64), heap.zeros(size, np.int64), heap.zeros(1, np.int32)
    room, sent = heap.array(np.array([size] + [0] * (n - 1))), heap.array(np.array([0] + [size * (not me)] * (n - 1)))
    pgas.barrier_all()
    launch_together(flood_to_others, 1, BLOCK, backwards, dest, room, source, sent, heap.zeros(n, np.int64), wrong, ROUNDS // 3)
    equal(wrong, np.zeros(1, np.int32), "elements before they came")


@pgas.jit
def put_and_meet(team, dest, right, left, wrong, rounds):
    """After one barrier the neighbor's element has arrived; after another it may be overwritten."""
    for r in range(1, rounds + 1):
        if cuda.threadIdx.x == 5:
            pgas.p(dest, 0, r, right)
        pgas.barrier_block(team)
        if cuda.threadIdx.x == 0 and dest[0] != r:
            wrong[0] += 1
        pgas.barrier_block(team)


@pgas.jit
def count_and_sync(team, counts, wrong, rounds):
    """By single threads: after quiet and team_sync, the elements of all members have arrived."""
    for r in range(1, rounds + 1):
        for q in range(pgas.team_n_pes(team)):
            pgas.p(counts, pgas.team_my_pe(team), r, pgas.team_translate_pe(team, q, pgas.TEAM_WORLD))
        pgas.quiet()
        pgas.team_sync(team)
        for q in range(pgas.team_n_pes(team)):
            if pgas.g(counts, q, pgas.my_pe()) != r:
                wrong[0] += 1
        pgas.team_sync(team)


@checklist("Collectives", "a barrier completes puts, a sync does not", "barriers without end")
def test_barriers(heap, me, n, backwards):
    for team in (pgas.TEAM_WORLD, backwards):
        dest, counts, wrong = heap.zeros(1, np.int64), heap.zeros(n, np.int64), heap.zeros(1, np.int32)
        pgas.barrier_all()
        launch_together(put_and_meet, 1, BLOCK, team, dest, (me + 1) % n, (me - 1) % n, wrong, ROUNDS)
        launch_together(count_and_sync, 1, 1, team, counts, wrong, ROUNDS)
        equal(wrong, np.zeros(1, np.int32))


@pgas.jit
def meet_and_move(team, dest, source, wrong, rounds):
    """On each channel, meetings and alltoall by turns: flags and data may take different queue pairs."""
    b, t, n = cuda.blockIdx.x, cuda.threadIdx.x, pgas.team_n_pes(team)
    for r in range(rounds):
        if t < n:
            source[b, t] = 100 * r + t
        pgas.team_sync_block(team, b)
        pgas.alltoall_block(team, dest[b], source[b], b)
        if t < n and dest[b, t] != 100 * r + pgas.team_my_pe(team):
            cuda.atomic.add(wrong, 0, 1)
        pgas.barrier_block(team, b)


@checklist("Collectives", "one after another without barriers", "blocks at once on channels of one team")
def test_meetings_between_moves(heap, n):
    dest, source, wrong = heap.zeros((BLOCKS, n), np.int32), heap.zeros((BLOCKS, n), np.int32), heap.zeros(1, np.int32)
    pgas.barrier_all()
    launch_together(meet_and_move, BLOCKS, WARP, pgas.TEAM_WORLD, dest, source, wrong, ROUNDS)
    equal(wrong, np.zeros(1, np.int32))


# ----------------------------------------------------------------------------------------------------------------- the host


@checklist("Collectives", "on the host, at once and on streams")
@pytest.mark.parametrize("stream", core([None, 0, "a stream"], None, "a stream"))
def test_on_the_host(heap, backwards, stream):
    """Every collective, one after another on the host's channel."""
    team, n, me = backwards, backwards.n_pes, backwards.my_pe
    stream = cuda.stream() if stream == "a stream" else stream
    sources = [numbers(n * 6, np.int32, q) for q in range(n)]
    source = heap.array(sources[me])
    dests = {name: heap.zeros(n * n * 6, np.int32) for name in (*MOVES, *REDUCTIONS, "alltoallv")}
    pairs = heap.array(np.stack([sources[me][:6], np.full(6, me, np.int32)], axis=1))
    best = [heap.zeros((6, 2), np.int32) for _ in range(2)]
    counts, displs = heap.full(n, 6, np.int64), heap.array(np.arange(n) * 6)
    pgas.barrier(team, stream=stream)
    pgas.broadcast(team, dests["broadcast"], source, n - 1, stream=stream)
    pgas.fcollect(team, dests["fcollect"], source, stream=stream)
    pgas.collect(team, dests["collect"], source, stream=stream)
    pgas.alltoall(team, dests["alltoall"], source, stream=stream)
    pgas.alltoallv(team, dests["alltoallv"], counts, displs, source, counts, displs, stream=stream)
    for name in REDUCTIONS:
        dest = dests[name][:6] if name == "reducescatter" else dests[name]
        getattr(pgas, name)(team, dest, source, pgas.SUM, stream=stream)
    pgas.maxloc(team, best[0], pairs, stream=stream)
    pgas.minloc(team, best[1], pairs, stream=stream)
    pgas.team_sync(team, stream=stream)
    pgas.synchronize(stream)
    for name, dest in dests.items():
        expected = taken("alltoall" if name == "alltoallv" else name, sources, me, root=n - 1)
        equal(dest[: expected.size], expected, name)
    first = np.stack([s[:6] for s in sources])
    equal(best[0], np.stack([first.max(0), first.argmax(0)], axis=1).astype(np.int32), "maxloc")
    equal(best[1], np.stack([first.min(0), first.argmin(0)], axis=1).astype(np.int32), "minloc")


@checklist("Collectives", "on the host, at once and on streams")
def test_two_streams_on_two_channels(heap, me, n):
    streams, sources = [cuda.stream(), cuda.stream()], [heap.full(50, 10 * me + i, np.int32) for i in range(2)]
    dests = [heap.zeros(50, np.int32) for _ in range(2)]
    pgas.barrier_all()
    for _ in range(3):
        for i, stream in enumerate(streams):
            pgas.reduce(pgas.TEAM_WORLD, dests[i], sources[i], pgas.SUM, i, stream=stream)
    for i, stream in enumerate(streams):
        pgas.synchronize(stream)
        equal(dests[i], np.full(50, 5 * n * (n - 1) + n * i, np.int32))
