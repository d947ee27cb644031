"""A pytest plugin: a test fails if the order checker finds something in it. All PEs run the same tests.

With PGAS_CHECK=order, this applies to all tests, otherwise to those with the fixture ``pgas_order``, and never to those with the marker
``pgas_unordered(reason)``. In conftest.py: ``pytest_plugins = ["pgas.check.pytest_plugin"]``.
"""

from collections.abc import Generator

import pytest

from pgas.base import config
from pgas.check import verdict


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "pgas_unordered(reason): the order checker's report does not count, because of a reason")


@pytest.fixture
def pgas_order() -> None:
    """Fail the test if the order checker finds something in it."""
    verdict.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Report on a test and the fixtures of its function. The next test's log begins here."""
    if not config.read("PGAS_CHECK") and "pgas_order" not in getattr(item, "fixturenames", ()):
        try:
            return (yield)
        finally:
            verdict.discard()
    recorder = verdict.install()
    try:
        result = yield
    except (Exception, pytest.fail.Exception) as error:
        if item.get_closest_marker("pgas_unordered") is not None:
            verdict.abstain(recorder)
        elif text := verdict.of_failure(recorder):
            error.add_note(text)
        raise
    except BaseException:
        verdict.abstain(recorder)
        raise
    if (text := verdict.report(recorder)) and item.get_closest_marker("pgas_unordered") is None:
        pytest.fail(text, pytrace=False)
    return result
