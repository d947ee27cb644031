import pytest

from conformance import job
from conformance.fixtures import *  # noqa: F403


def pytest_addoption(parser):
    text = "add what this run shows to a JSON file, and print it by the bullets of the checklist"
    parser.addoption("--conformance-report", metavar="FILE", help=text)


@pytest.hookimpl(trylast=True)  # after the terminal's reporter, which PEs but the first silence
def pytest_configure(config):
    if not config.pluginmanager.has_plugin("conformance job"):
        config.pluginmanager.register(job, "conformance job")
