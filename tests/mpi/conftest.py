"""The job around the tests, and what keeps its PEs in step.

All PEs run the same tests in the same order and meet between them. A PE that failed waits there while the others, still inside, get
an error from the collective call that differs from its own; so one PE's failure costs the others an error in the same test and no
more. PE 0 reports, other PEs only failures.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import pytest

import pgas
from mpi.checks import PE_LEFT
from pgas.backend import launched_rank

HERE = Path(__file__).parent
RANK = launched_rank() or 0
SETUP = HERE / "test_setup.py"
TIMEOUT_S = int(os.environ.get("TEST_TIMEOUT", "60"))
SETUP_TIMEOUT_S = 30
GRACE_S = 5

#: The heap holds the array of more than 2 GiB; a wait for a PE that failed ends soon.
ENVIRONMENT = {"PGAS_TIMEOUT": "20", "PGAS_SYMMETRIC_SIZE": "3G"}

failed = pytest.StashKey[bool]()


# -------------------------------------------------------------------------------------------------------------------- reports


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if RANK > 0 and (reporter := config.pluginmanager.getplugin("terminalreporter")) is not None:
        reporter._tw._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process


def pytest_runtest_logreport(report):
    if RANK > 0 and report.failed:
        print(f"\nPE {RANK}: {report.when} of {report.nodeid} failed\n{report.longreprtext}", file=sys.__stderr__, flush=True)


def pytest_unconfigure():
    """Processes that cannot meet any more must not wait for each other at their end either. PE 0 has reported by now."""
    if "mpi4py.MPI" in sys.modules and is_running():
        time.sleep(0 if RANK == 0 else GRACE_S)
        sys.stdout.flush()
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(1)


def pytest_collection_modifyitems(items):
    """Tests that start and end jobs themselves come last."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(SETUP_TIMEOUT_S if item.path == SETUP else TIMEOUT_S))
            if item.get_closest_marker("gpu") and pgas.SIMULATOR:
                item.add_marker(pytest.mark.skip(reason="capability missing: a GPU"))
    items.sort(key=lambda item: item.path == SETUP)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.stash[failed] = True
    return report


# ------------------------------------------------------------------------------------------------------------------------ job


@pytest.fixture(scope="session", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            if name not in os.environ:
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def _job(environment):
    pgas.init()
    yield
    if is_running():
        end_job()


def is_running():
    """Whether pgas is between init and finalize."""
    try:
        pgas.n_pes()
    except pgas.PgasError:
        return False
    return True


def end_job():
    """Finalize; all tests have freed their arrays."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pgas.finalize()
    assert not caught, [str(w.message) for w in caught]


class Heap:
    """pgas's allocating functions; what they return is freed at the end of the test."""

    def __init__(self):
        self.arrays = []

    def _keep(self, array):
        self.arrays.append(array)
        return array

    def empty(self, *args, **kwargs):
        return self._keep(pgas.empty(*args, **kwargs))

    def zeros(self, *args, **kwargs):
        return self._keep(pgas.zeros(*args, **kwargs))

    def full(self, *args, **kwargs):
        return self._keep(pgas.full(*args, **kwargs))

    def array(self, *args, **kwargs):
        return self._keep(pgas.array(*args, **kwargs))

    def free(self, array):
        self.arrays = [a for a in self.arrays if a is not array]
        pgas.free(array)


def _meet(test, *state):
    """Wait until all PEs are at the end of the test; return the states that they bring. One still inside fails there, and comes then."""
    while True:
        try:
            met = pgas.allgather_object((PE_LEFT, test, *state))
        except pgas.BootstrapError:  # one is in another call
            continue
        if all(isinstance(m, tuple) and m[:2] == (PE_LEFT, test) for m in met):
            return [m[2:] for m in met]


def _sound():
    """Whether this PE's kernels have left no error behind: after one, nothing works any more."""
    try:
        pgas.synchronize()
    except pgas.PgasError:
        return False
    return True


@pytest.fixture(autouse=True)
def heap(request):
    """The symmetric heap, for the time of one test."""
    if request.path == SETUP:
        yield None
        return
    request.getfixturevalue("_job")
    heap = Heap()
    yield heap
    failure = request.node.stash.get(failed, False)
    states = _meet(request.node.nodeid, failure, not failure or _sound(), len(heap.arrays))
    if not all(sound for _, sound, _ in states) or len({count for *_, count in states}) > 1:
        pytest.exit(f"PEs cannot go on after {request.node.nodeid}: {states}", returncode=1)
    for array in reversed(heap.arrays):
        pgas.free(array)
