"""Settings of all tests."""

import os
import re
import signal

import hypothesis
import pytest

# Tests read whole lines of what they start. PYTHONUNBUFFERED, which CI likes to set, makes print() write a line and its end apart, and
# mpirun mixes those of several PEs; the others are widths and colours of a terminal that is none.
for name in ("PYTHONUNBUFFERED", "COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

# Where SIGINT is ignored, as in the background of a shell, programs would inherit that, and tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Times are no property of what is tested here: on a machine with too few cores an example takes as long as it is kept waiting.
hypothesis.settings.register_profile("pgas", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.load_profile("pgas")


def pytest_addoption(parser):
    parser.addoption("--part", metavar="I/N", help="every Nth of the tests selected, from the Ith on")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item):
    """Of a module that tests a tool, `make check` runs what it names in SMOKE; `make check-all` runs the rest."""
    smoke = getattr(item.module, "SMOKE", None)
    if smoke is not None and item.name not in smoke:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if (part := config.getoption("part")) is not None:
        number, parts = (int(word) for word in part.split("/")) if re.fullmatch("[0-9]+/[0-9]+", part) else (0, 0)
        if not 1 <= number <= parts:
            raise pytest.UsageError(f"--part {part}: I/N is expected, I from 1 to N")
        kept = items[number - 1 :: parts]  # neighbours, of one test with several types, compile as much as each other
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
