"""Settings of all tests."""

import os

import hypothesis

# Tests read whole lines of what they start. PYTHONUNBUFFERED, which CI likes to set, makes print() write a line and its end apart, and
# mpirun mixes those of several PEs; the others are widths and colours of a terminal that is none.
for name in ("PYTHONUNBUFFERED", "COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

# Times are no property of what is tested here: on a machine with too few cores an example takes as long as it is kept waiting.
hypothesis.settings.register_profile("pgas", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.load_profile("pgas")
