import pytest

from conformance import job
from conformance.fixtures import *  # noqa: F403


def pytest_addoption(parser):
    text = "add the results of this run to a JSON file, and print them by bullets of the checklist"
    parser.addoption("--conformance-report", metavar="FILE", help=text)


@pytest.hookimpl(trylast=True)  # after the terminal reporter, which is silenced on all PEs but the first
def pytest_configure(config):
    if not config.pluginmanager.has_plugin("conformance job"):
        config.pluginmanager.register(job, "conformance job")
