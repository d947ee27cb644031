"""These tests run on the PEs of a job as the conformance suite's do, and look into pgas."""

import pytest
from conformance import job
from conformance.fixtures import *  # noqa: F403


@pytest.hookimpl(trylast=True)  # after the terminal's reporter, which PEs but the first silence
def pytest_configure(config):
    if not config.pluginmanager.has_plugin("conformance job"):
        config.pluginmanager.register(job, "conformance job")
