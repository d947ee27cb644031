"""Settings of all tests."""

import os
import re
import signal
import sys

import hypothesis
import pytest

# Tests read whole lines of the output of programs. With PYTHONUNBUFFERED print() writes a line and its end separately, and mpirun mixes the
# parts of several PEs. The other variables set the width and colors of a terminal.
for name in ("PYTHONUNBUFFERED", "COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

# If SIGINT is ignored, as in the background of a shell, programs inherit that, and tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline for examples: times depend on the machine.
hypothesis.settings.register_profile("pgas", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.load_profile("pgas")


@pytest.fixture(autouse=True)
def _environment():
    """Undo changes of environment variables: commands that a test runs in this process set some, which later tests would inherit."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name != "PYTEST_CURRENT_TEST"})


def pytest_addoption(parser):
    parser.addoption("--part", metavar="I/N", help="every Nth of the selected tests, from the Ith on")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item):
    """In modules that test a tool, mark all tests but those in SMOKE as slow, for `make check-all`."""
    smoke = getattr(item.module, "SMOKE", None)
    if smoke is not None and item.name not in smoke:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call):
    """Show the frames of pgas in failures of its own tests, which pytest leaves out for users (pgas/base/tracebacks.py)."""
    for name, module in list(sys.modules.items()) if call.excinfo else ():
        if name.partition(".")[0] == "pgas":
            vars(module).pop("__tracebackhide__", None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if (part := config.getoption("part")) is not None:
        number, parts = (int(word) for word in part.split("/")) if re.fullmatch("[0-9]+/[0-9]+", part) else (0, 0)
        if not 1 <= number <= parts:
            raise pytest.UsageError(f"--part {part}: I/N is expected, I from 1 to N")
        kept = items[number - 1 :: parts]  # neighbors, often one test with several types, take equally long
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
