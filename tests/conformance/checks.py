"""Shared by the tests: verdicts that all PEs agree on, launches, data, and destinations with guarded neighbors."""

import os
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numba import cuda

from conformance import library as pgas


def _launched(*names):
    """Return the number in the first of these variables of a launcher that is set, None if none is."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


_RANK = _launched("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")

#: Whether mpirun started this process, its rank, and the number of processes.
LAUNCHED = _RANK is not None
RANK = _RANK or 0
N = (_launched("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE") or 1) if LAUNCHED else 1

needs_peer = pytest.mark.skipif(N < 2, reason="capability missing: a second PE")

#: The requested transport. A NIC may be the path to some PEs only. It reaches local operands on the heap, and maps nobody's memory.
TRANSPORT = os.environ.get("PGAS_TRANSPORT", "auto")
THROUGH_NIC = not {"ibgda", "ibrc"}.isdisjoint(TRANSPORT.split(","))
needs_mapped_peers = pytest.mark.skipif(THROUGH_NIC, reason=f"refused: over {TRANSPORT} ptr() of a peer may be None")
needs_any_memory = pytest.mark.skipif(THROUGH_NIC, reason=f"refused: local operands of {TRANSPORT} lie on the heap")


def nbytes_of(size):
    """Parse a size in the form of PGAS_SYMMETRIC_SIZE: "3G", "64M", "4096"."""
    number, unit = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(?:I?B)?", size.strip().upper()).groups()
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


#: Initial and largest bytes of the heap.
HEAP_SIZE = nbytes_of(os.environ.get("PGAS_SYMMETRIC_SIZE", "3G"))
HEAP_LIMIT = nbytes_of(os.environ.get("PGAS_MAX_MEMORY_PER_GPU") or str(HEAP_SIZE + (256 << 20)))


def capability(name):
    """Mark tests that need a capability of the machine. CONFORMANCE_WITHOUT lists the missing ones."""
    return pytest.mark.skipif(name in os.environ.get("CONFORMANCE_WITHOUT", "").split(","), reason=f"capability missing: {name}")


needs_jobs_side_by_side = capability("jobs side by side")


def needs(*names):
    """Mark tests of functions that a library may lack."""
    return pytest.mark.skipif(not pgas.has(*names), reason=f"refused: {pgas.NAME} has no {', '.join(names)}")


def refused(error):
    """Report the test as refused by the library, with its message; called on all PEs."""
    pytest.skip(f"refused: {error}")


def checklist(chapter, *bullets):
    """Mark the bullets of checklist.py that a test checks."""
    return pytest.mark.checklist(chapter, *bullets)


class Words(str):
    """The text of an error. Its content is checked for pgas only, as other libraries have other messages."""

    def __contains__(self, text):
        return not pgas.OWN_WORDS or super().__contains__(text)


def raises(error, match):
    """As pytest.raises; the text is checked for pgas only."""
    return pytest.raises(error, match=match if pgas.OWN_WORDS else None)


#: First element of a PE's message at the end of a test.
PE_LEFT = "at the end of a test"

WARP = 32
BLOCK = 96

PLAIN = [
    np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64",
        "complex64", "complex128",
    )
]  # fmt: skip
PIXEL = np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])
POINT = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])
ALIGNED_POINT = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")], align=True)
PARTICLE = np.dtype([("mass", "f8"), ("charge", "i4"), ("kind", "u4")], align=True)
RECORDS = [PIXEL, POINT, ALIGNED_POINT, PARTICLE]

#: Errors of a call that is refused when the kernel is compiled.
REFUSED: tuple = (TypeError,)
if not pgas.SIMULATOR:
    from numba.core.errors import TypingError

    REFUSED += (TypingError,)

#: For @given: as many examples on every PE. They may differ, because Hypothesis also draws constants of the modules that a PE has imported,
#: such as those of the software NIC that it has started; all PEs take those of PE 0.
as_many_examples = settings(derandomize=True, database=None, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


def name_of(dtype):
    return dtype.name if dtype.names is None else f"record{dtype.itemsize}{'a' if dtype.isalignedstruct else ''}"


def neighbors():
    """Return this PE, the number of PEs, the PE that it sends to, and the PE that it receives from."""
    me, n = pgas.my_pe(), pgas.n_pes()
    return me, n, (me + 1) % n, (me - 1) % n


def counterpart(copy):
    """Return the argument pe of each PE, and the PE whose source arrives in this PE's dest: a shift to the right by one."""
    _, _, right, left = neighbors()
    return (right if "put" in copy else left), left


@pgas.jit
def put_whole(dest, source, pe):
    pgas.put_block(dest, source, pe)


def kernel_of(parameters, *lines, **names):
    """Return a kernel of these lines, which may use pgas, cuda, np and the given names."""
    built = {"pgas": pgas, "cuda": cuda, "np": np, "__name__": __name__, **names}
    exec("\n    ".join([f"def kernel({parameters}):", *lines]), built)
    return pgas.jit(built["kernel"], cache=False)


def launch_together(kernel, grid, block, *args):
    """Run a kernel whose threads wait for other PEs' kernels."""
    pgas.launch(kernel, grid, block, args)


def everywhere(fault):
    """Fail on all PEs if one reports a fault (a text; empty or None: no fault). Collective."""
    verdicts = pgas.allgather_object(("verdict", fault))
    if gone := [pe for pe, v in enumerate(verdicts) if v[0] != "verdict"]:
        raise AssertionError(f"this test has ended on PE {gone[0]}: {verdicts[gone[0]]}")
    faults = [f"PE {pe}: {f}" for pe, (_, f) in enumerate(verdicts) if f]
    assert not faults, "; ".join(faults)


def equal(found, expected, what=""):
    """Wait for all PEs' kernels and compare an array with its expected contents, byte by byte, on every PE. Collective."""
    pgas.barrier_all()
    everywhere(difference(found, expected, what))


def difference(found, expected, what=""):
    """Return where two arrays differ, None if they do not."""
    found, expected = (np.ascontiguousarray(a.copy_to_host() if hasattr(a, "copy_to_host") else a) for a in (found, expected))
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{what}: {found.dtype} {found.shape} found, {expected.dtype} {expected.shape} expected"
    a, b = (np.frombuffer(x.tobytes(), np.uint8) for x in (found, expected))
    if (wrong := np.flatnonzero(a != b)).size == 0:
        return None
    i = int(wrong[0]) // found.dtype.itemsize
    return (
        f"{what}: {wrong.size} bytes differ, first in element {i} of {found.size}: "
        f"{found.reshape(-1)[i]} found, {expected.reshape(-1)[i]} expected (last in {int(wrong[-1]) // found.dtype.itemsize})"
    )


def payload(nelems, dtype, seed):
    """Return random elements that depend on the seed only."""
    dtype = np.dtype(dtype)
    data = np.random.default_rng([seed, nelems, dtype.itemsize]).integers(0, 256, nelems * dtype.itemsize, np.uint8)
    if dtype == np.bool_:
        return (data & 1).view(np.bool_)
    if dtype.kind in "fc":
        parts = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        integers = {2: np.uint16, 4: np.uint32, 8: np.uint64}[parts]
        return (data.view(integers) >> integers(2)).view(dtype)  # finite
    return data.view(dtype)


class Watched:
    """A symmetric array of random bytes. The whole array is compared with an image on the host, so stray writes are found."""

    def __init__(self, heap, shape, dtype):
        self.image = payload(int(np.prod(shape)), dtype, 0xD0).reshape(shape)
        self.array = heap.array(self.image)

    def expect(self, start, data):
        self.image.reshape(-1)[start : start + data.size] = data.reshape(-1)

    def check(self):
        """Wait for all PEs' kernels; fail on all PEs if any element of the array is wrong. Collective."""
        equal(self.array, self.image)

    def holds(self, start, data):
        self.expect(start, data)
        self.check()
