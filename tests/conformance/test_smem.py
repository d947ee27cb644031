"""Copies through shared memory that the kernel lends (give_smem): the same results as without, whatever the message and the memory."""

import functools

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import (
    BLOCK,
    REFUSED,
    THROUGH_NIC,
    WARP,
    Watched,
    Words,
    checklist,
    equal,
    everywhere,
    kernel_of,
    launch_together,
    needs_any_memory,
    payload,
)

SCOPES = {"": 1, "_warp": WARP, "_block": BLOCK}
#: Bytes of shared memory: the fewest that are allowed, and enough that all pieces of a message of 16 KiB are on their way.
ROOM = [2048, 24 << 10]
#: Around the sizes from which it is used, and messages that use each stage once, or again and again.
SIZES = [0, 1, 511, 512, 513, 5000, 16 << 10, (64 << 10) + 48, 100_003]
WARPS, TURNS = 3, 4


@functools.cache
def copying(call, scope, room):
    """Return a kernel that copies to dest[at:] from source[origin:] with an array of room bytes lent."""
    move, give, nbytes = getattr(pgas, call + scope), getattr(pgas, "give_smem" + scope), room

    @pgas.jit
    def copies(dest, at, source, origin, nelems, pe):
        smem = cuda.shared.array(nbytes, np.uint8)
        give(smem)
        move(dest[at:], source[origin:], pe, nelems, smem=smem)

    return copies


@checklist("Remote memory access", "through shared memory that the kernel lends")
@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("call", ["put", "get"])
def test_lent_sizes_and_alignments(heap, me, right, left, call, scope, room):
    most = max(SIZES) + 64
    source = heap.array(payload(most, np.uint8, me))
    came = payload(most, np.uint8, left if call == "put" else right)
    dest = Watched(heap, most, np.uint8)
    for i, size in enumerate(SIZES):
        at, origin = ((0, 0), (16, 32), (3, 19), (5, 8))[i % 4]
        copying(call, scope, room)[1, SCOPES[scope]](dest.array, at, source, origin, size, right)
        dest.holds(at, came[origin : origin + size])


@pgas.jit
def in_turns(dest, source, sig, turns, right):
    """Each warp lends itself an array, uses it again and again, and signals after a fence; then it checks nothing but waits."""
    smem = cuda.shared.array((WARPS, 4096), np.uint8)
    w, lane, each = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32, dest.size // (WARPS * turns)
    mine = smem[w]
    pgas.give_smem_warp(mine)
    for turn in range(turns):
        at = (w * turns + turn) * each
        pgas.put_warp(dest[at:], source[at:], right, each, smem=mine)
        if lane == 0:
            pgas.fence()
            pgas.signal_op(sig, w, turn + 1, pgas.SIGNAL_SET, right)
            pgas.signal_wait_until(sig, w, pgas.GE, turn + 1)
        cuda.syncwarp()
        for i in range(at + lane, at + each, 32):
            source[i] = dest[i] + 1  # of this turn: the source is free, and the data is there with its signal


@checklist("Remote memory access", "through shared memory that the kernel lends", "source is free after a blocking put")
def test_warps_lend_arrays_of_their_own(heap, me, right, left):
    size = WARPS * TURNS * 3000
    dest, source, sig = heap.zeros(size, np.int64), heap.array(payload(size, np.int64, me) >> 8), heap.zeros(WARPS, np.uint64)
    pgas.barrier_all()
    launch_together(in_turns, 1, WARPS * 32, dest, source, sig, TURNS, right)
    pgas.barrier_all()
    came = payload(size, np.int64, left) >> 8
    equal(dest, came)
    equal(source, came + 1)


@pgas.jit
def from_shared(dest, scratch, right):
    """A source in shared memory, copied while another array there is lent; the lent one is used for other things and given again."""
    smem, source = cuda.shared.array(4096, np.uint8), cuda.shared.array(2048, np.int64)
    t = cuda.threadIdx.x
    for i in range(t, source.size, cuda.blockDim.x):
        source[i] = i + 100 * right
    for i in range(t, smem.size, cuda.blockDim.x):
        smem[i] = 255
    pgas.give_smem_block(smem)
    if t == 0:
        pgas.put(dest, source, right, smem=smem)
    cuda.syncthreads()
    for i in range(t, smem.size, cuda.blockDim.x):
        smem[i] = 255
    pgas.give_smem_block(smem)
    if t == cuda.blockDim.x - 1:
        pgas.put(scratch[source.size :], scratch, right, source.size, smem=smem)


@checklist("Remote memory access", "through shared memory that the kernel lends", "local operands off the heap")
@needs_any_memory
def test_sources_in_shared_memory_and_memory_used_otherwise(heap, me, right, left):
    dest, scratch = heap.zeros(2048, np.int64), heap.array(np.arange(4096) + 7 * me)
    pgas.barrier_all()
    from_shared[1, BLOCK](dest, scratch, right)
    pgas.barrier_all()
    equal(dest, np.arange(2048) + 100 * me)
    equal(scratch, np.concatenate([np.arange(2048) + 7 * me, np.arange(2048) + 7 * left]))


@pgas.jit
def give_little(dest):
    smem = cuda.shared.array(1024, np.uint8)
    pgas.give_smem_block(smem)


@pgas.jit
def give_global(dest):
    pgas.give_smem(dest)


@pgas.jit
def lend_unprepared(dest):
    smem = cuda.shared.array(4096, np.uint8)
    smem[128] = 0
    pgas.put(dest[:10], dest[10:20], 0, smem=smem)


@pgas.jit
def give_gaps(dest):
    smem = cuda.shared.array(8192, np.uint8)
    pgas.give_smem(smem[::2])


@checklist("Remote memory access", "through shared memory that the kernel lends")
@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        (give_little, "give_smem_block: array must be at least 2048 bytes of shared memory, not 1024 bytes at "),
        (give_global, "give_smem: array must be at least 2048 bytes of shared memory, not 4096 bytes at "),
        (give_gaps, "give_smem: array must be contiguous, but its elements on axis 0 are 2 bytes apart instead of 1"),
        (lend_unprepared, "is not prepared; call give_smem first"),
    ],
)
@pytest.mark.pgas_unordered("the calls are wrong on purpose")
def test_refused_when_called(heap, kernel, wanted):
    if THROUGH_NIC and kernel is lend_unprepared:
        pytest.skip("capability missing: a path that uses the array")
    dest, text = Watched(heap, 512, np.int64), "nothing was refused"
    pgas.barrier_all()
    try:
        kernel[1, 1](dest.array)
        pgas.synchronize()
    except pgas.DeviceError as error:
        text = str(error)
    pgas.reset()
    checked = pgas.SIMULATOR or kernel is not lend_unprepared  # on a GPU, only PGAS_DEBUG=check looks
    everywhere(None if wanted in Words(text) or not checked else text)
    dest.check()


def test_refused_when_compiled(heap):
    dest = heap.zeros(8, np.int32)
    for call, wanted in (
        ("pgas.put(dest, dest, 0, smem=3)", "pgas.put: smem must be an array, not int"),
        ("pgas.give_smem(1.5)", "pgas.give_smem: array must be an array, not float"),
        ("pgas.put_nbi(dest, dest, 0, smem=dest)", "there is no parameter smem"),
    ):
        with pytest.raises(REFUSED) as caught:
            kernel_of("dest", call)[1, 1](dest)
        assert wanted in Words(str(caught.value))
    with pytest.raises(TypeError, match=r"pgas\.put: there is no parameter smem"):
        pgas.put(dest, dest, 0, smem=dest)
