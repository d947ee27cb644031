"""Fixtures of all tests that run on PEs: the environment of their job, and its heap."""

import os

import pytest

from conformance import job, library
from conformance.checks import HEAP_LIMIT, HEAP_SIZE, neighbors

__all__ = ["_job", "alone", "environment", "heap", "left", "me", "mpi", "n", "right"]

#: The heap holds an array of more than 2 GiB and grows in small steps. Waits for a PE that failed time out early.
ENVIRONMENT = {
    "PGAS_TIMEOUT": "20",
    "PGAS_SYMMETRIC_SIZE": str(HEAP_SIZE),
    "PGAS_CUMEM_GRANULARITY": "32M",
    "PGAS_MAX_MEMORY_PER_GPU": str(HEAP_LIMIT),
}


@pytest.fixture(scope="session", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            if name not in os.environ:
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def _job(environment):
    job.start_job()
    yield
    if job.is_running():
        job.end_job()


class Heap:
    """The library's allocating functions. Their arrays are freed at the end of the test."""

    def __init__(self):
        self.arrays = []

    def _keep(self, array):
        self.arrays.append(array)
        return array

    def empty(self, *args, **kwargs):
        return self._keep(library.empty(*args, **kwargs))

    def zeros(self, *args, **kwargs):
        return self._keep(library.zeros(*args, **kwargs))

    def full(self, *args, **kwargs):
        return self._keep(library.full(*args, **kwargs))

    def array(self, *args, **kwargs):
        return self._keep(library.array(*args, **kwargs))

    def free(self, array):
        self.arrays = [a for a in self.arrays if a is not array]
        library.free(array)


@pytest.fixture(autouse=True)
def heap(request):
    if job.is_alone(request.path):
        yield from _alone(request)
        return
    request.getfixturevalue("_job")
    heap, node = Heap(), request.node
    yield heap
    failure = node.stash.get(job.failed, False)
    states = job.meet(node.nodeid, failure, not failure or job.sound(), len(heap.arrays))
    job.note_failures(node, [failure for failure, *_ in states])
    if not all(sound for _, sound, _ in states) or len({count for *_, count in states}) > 1:
        pytest.exit(f"PEs cannot continue after {node.nodeid}: {states}", returncode=1)
    for array in reversed(heap.arrays):
        library.free(array)


def _alone(request):
    """Check that each test ends its own job on every PE, so that the next one can start its own."""
    comm, node = request.getfixturevalue("alone"), request.node
    yield None
    state = job.is_running(), node.stash.get(job.failed, False)
    states = [state] if comm is None else comm.allgather(state)
    job.note_failures(node, [failure for _, failure in states])
    if any(running for running, _ in states):
        pytest.exit(f"{node.nodeid} left its job running: (running, failed) by PE: {states}", returncode=1)


@pytest.fixture(scope="session")
def alone():
    """End the job of the other chapters; return a communicator of all processes (None without mpirun)."""
    if job.is_running():
        job.end_job()
    return job.world()


@pytest.fixture
def mpi():
    if not job.LAUNCHED:
        pytest.skip("capability missing: mpirun")
    from mpi4py import MPI

    return MPI


@pytest.fixture
def me(heap):
    return neighbors()[0]


@pytest.fixture
def n(heap):
    return neighbors()[1]


@pytest.fixture
def right(heap):
    """The PE that this PE sends to."""
    return neighbors()[2]


@pytest.fixture
def left(heap):
    """The PE that this PE receives from."""
    return neighbors()[3]
