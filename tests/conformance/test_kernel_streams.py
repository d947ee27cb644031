"""Streams: outstanding operations of kernels on two streams, and the default stream."""

import numpy as np
from numba import cuda

from conformance import library as pgas
from conformance.checks import Watched, checklist, payload

CHUNKS = 8 if pgas.SIMULATOR else 200


@pgas.jit
def put_chunks(dest, source, chunk, pe):
    """Start non-blocking puts; a later kernel of the same stream completes them."""
    for i in range(source.size // chunk):
        pgas.put_nbi_block(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], pe)


@pgas.jit
def quiet_kernel():
    pgas.quiet()


@checklist("Streams and graphs", "nbi on two streams")
def test_nbi_of_two_streams(heap, me, right, left):
    """On each stream a kernel starts puts and the next one completes them; the streams do not disturb each other."""
    chunk = 25
    streams = [cuda.stream(), cuda.stream()]
    dests = [Watched(heap, CHUNKS * chunk + 7, np.int32) for _ in streams]
    sources = [heap.array(payload(CHUNKS * chunk, np.int32, 10 * me + i)) for i in range(2)]
    for stream, dest, source in zip(streams, dests, sources, strict=True):
        put_chunks[1, 64, stream](dest.array, source, chunk, right)
    for stream in streams:
        quiet_kernel[1, 1, stream]()
    for stream in streams:
        pgas.synchronize(stream)
    for i, dest in enumerate(dests):
        dest.holds(0, payload(CHUNKS * chunk, np.int32, 10 * left + i))


@pgas.jit
def fill(array, value):
    i = cuda.grid(1)
    if i < array.size:
        array[i] = value


@checklist("Streams and graphs", "the default stream", "operations on a stream come in the order of its kernels")
def test_kernels_of_the_default_stream_come_in_order(heap, me, right, left):
    """Fill, put, fill again: the put reads the first contents."""
    dests, source = [heap.zeros(100, np.int32) for _ in range(5)], heap.zeros(100, np.int32)
    for i, dest in enumerate(dests):
        fill[4, 32](source, 10 * me + i)
        put_chunks[1, 64](dest, source, 25, right)
        quiet_kernel[1, 1]()
    fill[4, 32](source, -1)
    pgas.barrier_all()
    found = [int(x) for dest in dests for x in np.unique(dest.copy_to_host())]
    assert found == [10 * left + i for i in range(5)]
