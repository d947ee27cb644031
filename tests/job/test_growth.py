"""Limits and steps of a growing heap, and the heap's size in kernels that check their operands."""

import jobs
import pytest

from pgas.job.growth import Bounds
from pgas.kernels import window

MIB = 1 << 20

job = jobs.job


def bounds(size, chunk, most):
    return Bounds.of({"PGAS_SYMMETRIC_SIZE": size, "PGAS_CUMEM_GRANULARITY": chunk, "PGAS_MAX_MEMORY_PER_GPU": most})


@pytest.mark.parametrize(
    ("size", "chunk", "most", "expected"),
    [
        (64 * MIB, 512 * MIB, 128 * MIB, Bounds(512 * MIB, 128 * MIB)),
        (64 * MIB, 1, 64 * MIB, Bounds(2 * MIB, 64 * MIB)),
        (MIB, 3 * MIB, MIB, Bounds(4 * MIB, 2 * MIB)),  # a heap has whole pages of GPU memory
        (MIB, 2 * MIB, 7 * MIB, Bounds(2 * MIB, 6 * MIB)),
        (MIB, 2 * MIB, None, Bounds(2 * MIB, window.QUEUE_OFFSET - window.HEAP_OFFSET)),
        (MIB, 2 * MIB, 1 << 50, Bounds(2 * MIB, window.QUEUE_OFFSET - window.HEAP_OFFSET)),
    ],
)
def test_bounds(size, chunk, most, expected):
    assert bounds(size, chunk, most) == expected


def test_a_limit_below_the_initial_size():
    with pytest.raises(ValueError, match="PGAS_MAX_MEMORY_PER_GPU=1 MiB: must not be less than PGAS_SYMMETRIC_SIZE=2 MiB"):
        bounds(2 * MIB, MIB, MIB)


@pytest.mark.parametrize(
    ("size", "lacking", "step"),
    [(4, 0.5, 4), (4, 4, 4), (4, 4.5, 8), (4, 14, 14), (4, 14.5, 0), (14, 4, 4), (16, 1, 2), (16, 3, 0), (18, 0.5, 0)],
)
def test_step(size, lacking, step):
    """In MiB, for a heap that grows in steps of 4 to 18."""
    assert Bounds(4 * MIB, 18 * MIB).step(size * MIB, int(lacking * MIB)) == step * MIB


PROGRAM = """
from pgas.job import runtime

@pgas.jit
def put_from(dest, source, pe):
    pgas.put_block(dest, source, pe)

job = pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
first = pgas.zeros(3 << 17, np.int64)
put_from[1, 32](first, first[:100], (me + 1) % n)
pgas.barrier_all()
added = pgas.full(3 << 17, me, np.int64)
put_from[1, 32](first[-100:], added[-100:], (me + 1) % n)
put_from[1, 32](added[:1000], first[:1000], (me + 1) % n)
pgas.barrier_all()
say(f"PE {me}: {first[-100:].copy_to_host().tolist() == 100 * [(me - 1) % n]}, {int(added[:1000].copy_to_host().sum())}")
if me == 0:
    behind = runtime.at(job.address(added) + added.nbytes + (2 << 20), (100,), np.dtype(np.int64), job.heap.blocks[-1])
    attempt(lambda: (put_from[1, 32](behind, added[:100], 1), pgas.synchronize()))
    note("done")
else:  # whose end would end PE 0
    deadline = time.monotonic() + 20
    while not os.path.exists(sys.argv[0].replace("program.py", "done")) and time.monotonic() < deadline:
        time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize("transport", ["p2p", "ibgda"])
def test_checks_in_kernels(job, transport):
    """PGAS_DEBUG=check: added memory belongs to the heap, memory behind it does not."""
    variables = {"PGAS_SYMMETRIC_SIZE": "4M", "PGAS_CUMEM_GRANULARITY": "2M", "PGAS_DEBUG": "check", "PGAS_TRANSPORT": transport}
    ended = job(PROGRAM, **variables)
    assert ended.lines(1) == ["True, 0"], ended
    assert ended.lines(0)[0] == "True, 0", ended
    assert "is not on the symmetric heap" in ended.lines(0)[1], ended
