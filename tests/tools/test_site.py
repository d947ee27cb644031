"""make site: every page is in the navigation, the build has no warning, and no page loads anything from elsewhere."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from examples import PAGES, ROOT

SMOKE = ("test_every_page_is_in_the_navigation",)

#: docs/README.md is a list of the pages, as is the navigation.
IN_NAVIGATION = {"CONTRIBUTING.md", "CHANGELOG.md", *(page.relative_to(ROOT).as_posix() for page in PAGES)} - {"docs/README.md"}


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(IN_NAVIGATION)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a site; a warning is an error. With --quiet, MkDocs would not count warnings."""
    if not find_spec("material"):
        pytest.skip("no MkDocs: make site installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == len(IN_NAVIGATION) + 2  # docs/README.md and 404.html
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?([^" >]+)|<link[^>]* href="?([^" >]+)', page.read_text(encoding="utf-8"))
        assert loaded
        assert [url for urls in loaded for url in urls if re.match(r"\w+:|//", url)] == [], page
