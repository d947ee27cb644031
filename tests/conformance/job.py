"""What keeps the PEs of a run in step, and collects what they found; registered once, by the conftest of whichever folder is run.

All PEs run the same tests in the same order and meet between them. A PE that failed waits there while the others, still inside, get
an error from the collective call that differs from its own; so one PE's failure costs the others an error in the same test and no
more. PE 0 reports, other PEs only failures.
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

#: Modules whose tests start and end jobs themselves; they come last.
ALONE = ("test_a_init.py", "test_c_operands.py", "test_setup.py", "test_heap_growth.py", "test_strict.py")
FOLDERS = (Path(__file__).parent, Path(__file__).parent.parent / "mpi")
TIMEOUT_S = int(os.environ.get("TEST_TIMEOUT", "150"))
#: Of the first test, which starts the job; after an installation that compiles the software card.
START_S = 300
GRACE_S = 5

failed = pytest.StashKey[bool]()
collector = report.Collector()
_about = {}

#: The library's variables, as they were when this run started.
VARIABLES = report.variables()


def is_alone(path):
    """Whether a module's tests begin without a job."""
    return path.name in ALONE


# ------------------------------------------------------------------------------------------------------------------ hooks


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "checklist(chapter, *bullets): the bullets of checklist.py that the test answers")
    if RANK > 0 and (reporter := config.pluginmanager.getplugin("terminalreporter")) is not None:
        reporter._tw._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process


def pytest_collection_modifyitems(items):
    """Tests that start and end jobs themselves come last; each test's bullets are those of the checklist."""
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
    """The report, if one was asked for."""
    path = config.getoption("conformance_report", None)
    if path and RANK == 0:
        about = {"transport": os.environ.get("PGAS_TRANSPORT", "auto"), "npes": N, "machine": platform.node(), **_about}
        run = collector.run({"library": library.NAME, **about}, VARIABLES)
        report.append(path, run)
        terminalreporter.section("conformance")
        report.show([run], terminalreporter._tw._file)


def pytest_unconfigure():
    """Processes that cannot meet any more must not wait for each other at their end either. PE 0 has reported by now."""
    if "mpi4py.MPI" in sys.modules and is_running():
        time.sleep(0 if RANK == 0 else GRACE_S)
        sys.stdout.flush()
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(1)


# -------------------------------------------------------------------------------------------------------------------- job


def start_job():
    """The job of all tests but those alone; a second folder's tests find it running. The test that needs it first gets the time to."""
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
    """Finalize; all tests have freed their arrays."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.finalize()
    assert not caught, [str(w.message) for w in caught]


def meet(test, *state):
    """Wait until all PEs are at the end of the test; return the states that they bring. One still inside fails there, and comes then."""
    while True:
        try:
            met = library.allgather_object((PE_LEFT, test, *state))
        except library.BootstrapError:  # one is in another call
            continue
        if all(isinstance(m, tuple) and m[:2] == (PE_LEFT, test) for m in met):
            return [m[2:] for m in met]


def sound():
    """Whether this PE's kernels have left no error behind: after one, nothing works any more."""
    try:
        library.synchronize()
    except Exception:  # of the library, or of CUDA where the context is lost
        return False
    return True


def note_failures(node, failures):
    """Keep with a test, for the report, on which other PEs it has failed."""
    if elsewhere := [pe for pe, failure in enumerate(failures) if failure and pe != RANK]:
        node.user_properties.append(("failed on", elsewhere))


def world():
    """A communicator on which processes without a job meet, None without mpirun."""
    if not LAUNCHED:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()
