"""The disk cache of compiled code: its location, and the checks before code is loaded.

Loading a file executes its code. Therefore, a file is loaded only if this user owns it and its directory, no other user can write to them,
and its checksum is right. The directory is ``pgas``, in the first of Numba's locations where this user can have a private one:
$NUMBA_CACHE_DIR, ``__pycache__`` next to the source, ``~/.cache/numba``, or IPython's for notebooks. Code of pgas itself is stored next to
its source only as a last resort, because ``pip uninstall`` would leave such files, and the directory pgas with them, which Python could
still import.

Without a cache, every process compiles the code. Therefore, failures of the cache are warnings, which name the file, not errors.
"""

import contextlib
import glob
import hashlib
import inspect
import os
import pickle
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgas.base.errors import PgasWarning

_DIGEST_SIZE = hashlib.sha256().digest_size

#: Directories that cannot be written to, for which a warning was given.
_failed: set[Path] = set()


class NoPlace(Exception):
    """There is no directory for a function's code: the function is not from a file, or this user cannot have a private directory."""


class Files:
    """The compiled code of one function: a file for each key, which contains the key.

    Numba numbers its files by an index. Two processes that save concurrently, such as PEs of two jobs, may take the same number; later
    processes then load the code of one under the key of the other.

    Args:
        name: name of the function; files of other functions are not touched.
        stamp: stamp of the function's source; saving removes code with other stamps.
    """

    def __init__(self, folder: str, name: str, stamp: Any, dumps: Callable[[Any], bytes]) -> None:
        self._folder, self._name, self._dumps = Path(folder), name, dumps
        self._current = f"{name}-{_hash(stamp)[:8]}-"

    def path(self, key: Any) -> Path:
        return self._folder / f"{self._current}{_hash(key)[:32]}.nbc"

    def load(self, key: Any) -> Any:
        """Return the code of a key, or None if there is none or it must not be loaded."""
        path = self.path(key)
        try:
            kept, code = pickle.loads(self._whole(path))
        except FileNotFoundError:
            return None
        except Exception as error:  # Unpickling may raise anything.
            _warn(f"{path} was not loaded, so the code is being recompiled: {error}")
            return None
        return code if kept == key else None

    def _whole(self, path: Path) -> bytes:
        _check(os.stat(self._folder), "its folder")
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            _check(os.fstat(file.fileno()), "it")
            digest, data = file.read(_DIGEST_SIZE), file.read()
        if hashlib.sha256(data).digest() != digest:
            raise ValueError(f"it is broken ({len(digest) + len(data)} bytes)")
        return data

    def save(self, key: Any, code: Any) -> None:
        if self._folder in _failed:
            return
        path, data = self.path(key), self._dumps((key, code))
        with contextlib.ExitStack() as undo:
            try:
                _check(os.stat(self._folder), "its folder")
                self._remove(but=self._current)
                handle, name = tempfile.mkstemp(".tmp", self._current, self._folder)
                undo.callback(os.unlink, name)
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(name, path)
                undo.pop_all()
            except OSError as error:
                _cannot_keep(path, error)

    def flush(self) -> None:
        """Remove all files of the function."""
        with contextlib.suppress(OSError):
            self._remove()

    def _remove(self, but: str | None = None) -> None:
        for path in self._folder.glob(f"{glob.escape(self._name)}-*"):
            if but is None or not path.name.startswith(but):
                path.unlink(missing_ok=True)


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _check(status: os.stat_result, what: str) -> None:
    if not _private(status):
        raise PermissionError(f"another user owns {what} or can write to it (owner {status.st_uid}, mode {stat.filemode(status.st_mode)})")


def _cannot_keep(path: Path, error: OSError) -> None:
    if path.parent not in _failed:
        _failed.add(path.parent)
        _warn(f"{path} cannot be written, so code is compiled in every process: {error.strerror or error}")


def _warn(text: str) -> None:
    warnings.warn(text, PgasWarning, stacklevel=2)


#: Directory of this package.
_PACKAGE = Path(__file__).parent.parent


class _Place:
    """One of Numba's locations for code files; takes the role of its locator class.

    Args:
        inside: whether it may be in the directory of this package.
    """

    def __init__(self, locator: Any, *, inside: bool) -> None:
        self._locator, self._inside = locator, inside

    def from_function(self, function: Any, file: str) -> Any:
        """Return Numba's locator, with this user's private directory; None if there is none for this function."""
        locator = self._locator.from_function(function, file)
        if locator is None or (not self._inside and Path(locator.get_cache_path()).is_relative_to(_PACKAGE)):
            return None
        folder = os.path.join(locator.get_cache_path(), "pgas")
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            if not _private(os.stat(folder)) or not os.access(folder, os.W_OK):
                return None
        except OSError:
            return None
        locator.get_cache_path = lambda: folder
        return locator


def places(impl: Any) -> list[Any]:
    """Return the _locator_classes for a subclass of one of Numba's CacheImpl."""
    return [_Place(locator, inside=inside) for inside in (False, True) for locator in impl._locator_classes]


def files_of(impl: Any, function: Any, name: str, stamp: Any) -> Files:
    """Return the files of code that belongs to a function, in the first of Numba's locations.

    Raises:
        NoPlace: if there is no directory.
    """
    found = (place.from_function(function, inspect.getfile(function)) for place in places(impl))
    if (locator := next(filter(None, found), None)) is None:
        raise NoPlace
    return Files(locator.get_cache_path(), name, stamp, pickle.dumps)


class Uncacheable(Exception):
    """The compiled code depends on something that cannot be part of a key."""


class OnDisk:
    """A mix-in for Numba's cache classes that keeps code in Files.

    Args:
        key: returns the dependencies of the code beyond Numba's own key, at every load and save; if it raises Uncacheable, the cache is
            not used.

    Raises:
        NoPlace: if there is no directory.
    """

    def __init__(self, function: Any, key: Callable[[], tuple[Any, ...]]) -> None:
        base: Any = super()
        try:
            base.__init__(function)
        except RuntimeError as error:
            if "no locator available" in str(error):
                raise NoPlace from None
            raise
        own: Any = self
        impl, pickler = own._impl, own._cache_file._dump
        self._cache_file = Files(impl.locator.get_cache_path(), impl.filename_base, impl.locator.get_source_stamp(), pickler)
        self._key = key

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        base: Any = super()
        return (*base._index_key(sig, codegen), *self._key())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return saved code, None if there is none."""
        base: Any = super()
        try:
            return base.load_overload(sig, target_context)
        except Uncacheable:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        base: Any = super()
        try:
            base.save_overload(sig, data)
        except Uncacheable:
            pass
        except OSError as error:  # Numba writes to the directory before it saves.
            _cannot_keep(self._cache_file.path(()), error)


def keep(dispatcher: Any, cache: Callable[[], Any]) -> None:
    """Give a dispatcher of Numba a cache, if there is a directory for one."""
    with contextlib.suppress(NoPlace):
        dispatcher._cache = cache()
