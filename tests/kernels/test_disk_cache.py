"""Compiled code on disk: which files are loaded. Neither a bad file nor a full disk ends a program."""

import hashlib
import os
import pickle
import resource
import warnings
from contextlib import contextmanager

import pytest
from numba import types
from numba.core import config
from strangers import NOBODY

from pgas.base import disk_cache
from pgas.base.disk_cache import Files
from pgas.base.errors import PgasWarning
from pgas.native import cpu

RAN = []


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return RAN.append, ("evil",)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(disk_cache, "_failed", set())
    RAN.clear()


@pytest.fixture
def files(tmp_path):
    return Files(str(tmp_path), "m.f-1.py311", "stamp", pickle.dumps)


@contextmanager
def quietly():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def planted(path, data):
    """Write a file that looks like one of the cache."""
    path.write_bytes(hashlib.sha256(data).digest() + data)


def as_root():
    if os.geteuid() != 0:
        pytest.skip("capability missing: root, to play another user")


def test_a_file_for_each_key(files, tmp_path):
    """The file names its kernel. Files of an older source are removed when a newer one is written."""
    other = Files(str(tmp_path), "m.f-11.py311", "stamp", pickle.dumps)
    with quietly():
        files.save(("A", 1), "code of A")
        files.save(("B", 1), "code of B")
        other.save(("A", 1), "code of another function")
        assert [files.load((name, 1)) for name in "ABC"] == ["code of A", "code of B", None]
        files.path(("A", 1)).replace(files.path(("B", 1)))
        assert [files.load((name, 1)) for name in "AB"] == [None, None]
        newer = Files(str(tmp_path), "m.f-1.py311", "other stamp", pickle.dumps)
        assert newer.load(("A", 1)) is None
        newer.save(("A", 1), "new code of A")
        assert newer.load(("A", 1)) == "new code of A"
        newer.flush()
        assert list(tmp_path.iterdir()) == [other.path(("A", 1))]


def foreign(path):
    as_root()
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("of", ["file", "folder"])
@pytest.mark.parametrize("let", [foreign, lambda path: path.chmod(0o720), lambda path: path.chmod(0o702)], ids=["owner", "group", "others"])
def test_files_of_other_users_are_not_loaded(let, of, files, tmp_path):
    path = files.path("key")
    planted(path, pickle.dumps(Evil()))
    let(path if of == "file" else tmp_path)
    with pytest.warns(PgasWarning, match=rf"{path} was not loaded, so the code is being recompiled: another user owns it") as said:
        assert files.load("key") is None
    assert ("its folder" in str(said[0].message)) == (of == "folder")
    assert RAN == []


def test_nothing_is_written_to_a_folder_of_another_user(files, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.warns(
        PgasWarning, match=rf"{files.path('key')} cannot be written, so code .*: another user owns its folder or can write to it"
    ):
        files.save("key", "code")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(files, tmp_path):
    planted(tmp_path / "elsewhere", pickle.dumps(Evil()))
    files.path("key").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(PgasWarning, match="was not loaded"):
        assert files.load("key") is None
    assert RAN == []


def places(locator):
    return disk_cache.places(type("", (), {"_locator_classes": [type("", (), {"from_function": lambda *_: locator()})]}))


def test_code_of_pgas_goes_next_to_its_source_only_as_a_last_resort():
    class Locator:
        def get_cache_path(self):
            return os.path.join(os.path.dirname(disk_cache.__file__), "__pycache__")

    first, last = places(Locator)
    assert first.from_function(None, "") is None
    assert last.from_function(None, "") is not None


@pytest.mark.parametrize("uid", [NOBODY, None])
def test_a_location_whose_folder_another_user_owns(uid, tmp_path):
    class Locator:
        def get_cache_path(self):
            return str(tmp_path)

    place, _ = places(Locator)
    assert place.from_function(None, "").get_cache_path() == str(tmp_path / "pgas")
    assert (tmp_path / "pgas").stat().st_mode & 0o777 == 0o700
    if uid is None:
        (tmp_path / "pgas").chmod(0o777)
    else:
        as_root()
        os.chown(tmp_path / "pgas", uid, uid)
    assert place.from_function(None, "") is None


# ------------------------------------------------------------------------------------------------------ functions of the CPU


def successor(x):
    return x + 1


def hits():
    dispatcher = cpu.compiled(types.int64(types.int64), successor)
    assert dispatcher(1) == 2
    return sum(dispatcher.stats.cache_hits.values())


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))  # Numba reads the variable when it compiles
    with quietly():
        assert [hits(), hits()] == [0, 1]
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.parent.name == "pgas"
    assert (file.stat().st_mode | file.parent.stat().st_mode) & 0o077 == 0
    return file


@pytest.mark.parametrize(
    "spoiled", [lambda code: b"", lambda code: code[:40], lambda code: code[:-1], lambda code: code[:-1] + b"\xff", lambda code: b"x" * 999]
)
def test_a_broken_file(spoiled, kept):
    """The warning names it, and it is written again."""
    kept.write_bytes(spoiled(kept.read_bytes()))
    with pytest.warns(PgasWarning, match=rf"{kept} was not loaded, so the code is being recompiled: it is broken \(\d+ bytes\)"):
        assert hits() == 0
    with quietly():
        assert hits() == 1


def test_a_file_of_other_contents(kept):
    planted(kept, pickle.dumps(1))
    with pytest.warns(PgasWarning, match=rf"{kept} was not loaded, so the code is being recompiled: "):
        assert hits() == 0


@contextmanager
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(kept):
    """There is one warning, however many files cannot be written, and no half-written file."""
    kept.unlink()
    with full_disk(), pytest.warns(PgasWarning) as said:
        assert [hits(), hits()] == [0, 0]
    assert [str(one.message) for one in said] == [f"{kept} cannot be written, so code is compiled in every process: File too large"]
    assert list(kept.parent.iterdir()) == []


def test_a_folder_that_is_gone(kept, monkeypatch):
    """Numba makes it again, which may fail."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    kept.unlink()
    monkeypatch.setattr(cpu._Impl, "check_cachable", lambda *_: monkeypatch.setattr(os, "makedirs", full) or True)
    with pytest.warns(PgasWarning, match=rf"{kept.parent}/.* cannot be written, so code .*: No space left on device"):
        assert hits() == 0
