"""Settings of all tests."""

import hypothesis

# Times are no property of what is tested here: on a machine with too few cores an example takes as long as it is kept waiting.
hypothesis.settings.register_profile("pgas", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
hypothesis.settings.load_profile("pgas")
