"""A pytest plugin that keeps the PEs of a run in step and collects their results; registered by the conftest of the folder that is run.

All PEs run the same tests in the same order, and meet after each. When a PE fails, it waits at that meeting. The others, still in the test,
get an error because their next collective call differs from its call. So one PE's failure fails that test on all PEs, and no other test.
PE 0 reports everything, other PEs only failures.
"""

import os
import platform
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest

from conformance import library, report
from conformance.checklist import is_bullet
from conformance.checks import LAUNCHED, PE_LEFT, RANK, N

#: Modules whose tests start and end jobs themselves; they run last.
ALONE = ("test_init.py", "test_operands.py", "test_setup.py", "test_heap_growth.py", "test_strict.py")
FOLDERS = (Path(__file__).parent, Path(__file__).parent.parent / "mpi")
TIMEOUT_S = int(os.environ.get("TEST_TIMEOUT", "150"))
#: Timeout of the first test, which starts the job and may compile the software card.
START_S = 300
GRACE_S = 5

failed = pytest.StashKey[bool]()
collector = report.Collector()
_about = {}

#: The library's environment variables at the start of this run.
VARIABLES = report.variables()


def is_alone(path):
    """Whether a module's tests start without a job."""
    return path.name in ALONE


# ------------------------------------------------------------------------------------------------------------------ hooks


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "checklist(chapter, *bullets): the bullets of checklist.py that the test checks")
    if RANK > 0 and (reporter := config.pluginmanager.getplugin("terminalreporter")) is not None:
        reporter._tw._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process


def pytest_collection_modifyitems(items):
    """Move tests that start and end jobs to the end, and check that the bullets of tests are in the checklist."""
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in FOLDERS):
            continue
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if item.get_closest_marker("gpu") and library.SIMULATOR:
            item.add_marker(pytest.mark.skip(reason="capability missing: a GPU"))
        bullets = [(mark.args[0], bullet) for mark in item.iter_markers("checklist") for bullet in mark.args[1:]]
        if unknown := [b for b in bullets if not is_bullet(*b)]:
            raise pytest.UsageError(f"{item.nodeid}: not in the checklist: {unknown}")
        collector.expect(item.nodeid, bullets)
    items.sort(key=lambda item: is_alone(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    if outcome.failed:
        item.stash[failed] = True
    return outcome


def pytest_runtest_logreport(report):
    collector.add(report)
    if RANK > 0 and report.failed:
        print(f"\nPE {RANK}: {report.when} of {report.nodeid} failed\n{report.longreprtext}", file=sys.__stderr__, flush=True)


def pytest_terminal_summary(terminalreporter, config):
    """Print the report if one was requested."""
    path = config.getoption("conformance_report", None)
    if path and RANK == 0:
        about = {"transport": os.environ.get("PGAS_TRANSPORT", "auto"), "npes": N, "machine": platform.node(), **_about}
        run = collector.run({"library": library.NAME, **about}, VARIABLES)
        report.append(path, run)
        terminalreporter.section("conformance")
        report.show([run], terminalreporter._tw._file)


def pytest_unconfigure():
    """End processes without MPI_Finalize if they are out of step, as it would wait. PE 0 has reported by now."""
    if "mpi4py.MPI" in sys.modules and is_running():
        time.sleep(0 if RANK == 0 else GRACE_S)
        sys.stdout.flush()
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(1)


# -------------------------------------------------------------------------------------------------------------------- job


def start_job():
    """Start the job that all tests share, except those that start their own. The timeout of the first test is extended for it."""
    if not is_running():
        if signal.getitimer(signal.ITIMER_REAL)[0]:  # the test's timeout (pytest-timeout)
            signal.setitimer(signal.ITIMER_REAL, START_S)
        library.init()
        _about.update(library.info())


def is_running():
    """Whether the library is between init and finalize."""
    try:
        library.n_pes()
    except library.PgasError:
        return False
    return True


def end_job():
    """Finalize the job. All tests have freed their arrays."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.finalize()
    assert not caught, [str(w.message) for w in caught]


def meet(test, *state):
    """Wait until all PEs have ended the test; return their states. A PE that is still in the test fails there first."""
    while True:
        try:
            met = library.allgather_object((PE_LEFT, test, *state))
        except library.BootstrapError:  # a PE is in another call
            continue
        if all(isinstance(m, tuple) and m[:2] == (PE_LEFT, test) for m in met):
            return [m[2:] for m in met]


def sound():
    """Whether this PE's kernels have left no error; after an error the job is unusable."""
    try:
        library.synchronize()
    except Exception:  # the library's, or CUDA's if the context is lost
        return False
    return True


def note_failures(node, failures):
    """Record with a test the other PEs on which it failed, for the report."""
    if elsewhere := [pe for pe, failure in enumerate(failures) if failure and pe != RANK]:
        node.user_properties.append(("failed on", elsewhere))


def world():
    """Return a communicator for processes without a job, None without mpirun."""
    if not LAUNCHED:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()
