"""These tests run on the PEs of a job, as the conformance suite does, and use internals of pgas."""

import pytest
from conformance import job
from conformance.fixtures import *  # noqa: F403


@pytest.hookimpl(trylast=True)  # after the terminal reporter, which is silenced on all PEs but the first
def pytest_configure(config):
    if not config.pluginmanager.has_plugin("conformance job"):
        config.pluginmanager.register(job, "conformance job")
