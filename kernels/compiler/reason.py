"""The reason why a kernel does not compile, in one sentence with the user's line; an exception of numba-cuda takes up to a page."""

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numba_cuda

from pgas.native.dtypes import ONLY_COPIED

#: Directories with code that is not the user's.
_FOREIGN = tuple(f"{folder}/" for folder in (Path(__file__).parents[1], *(Path(m.__file__).parent for m in (numba, numba_cuda))))

#: Patterns in a message, and the replacement for each. The first match is used.
_SENTENCES = (
    (r"(pgas\.\w+: .*)", "{0}"),  # a message of pgas
    (r"Function\(<function (\w+) at [\s\S]*?/kernels/ops/[\s\S]*?Error: (.*)", "pgas.{0}: {1}"),
    (
        r"Cannot unify IntEnum<int64>\((\w+)\) and IntEnum<int64>\((\w+)\)",
        "pgas.{0} or pgas.{1} is chosen at run time; write a call for each",
    ),
    (r"No implementation of function Function\(<function (shared|local)\.array ", "the shape in cuda.{0}.array must be constant"),
    (r"Only accept returning of array", "kernels cannot make arrays; use cuda.local.array or cuda.shared.array"),
    (r"set_try_status", "kernels cannot have try and except"),
    (r"terminator_types|The 'with ", "kernels cannot have with"),
    (r"'build_(\w+)'|Unknown attribute '\w+' of type (list)|\(List\(", "kernels cannot have lists, sets, and dicts; use cuda.local.array"),
    (r"(?:No implementation of function [\s\S]*?\n\s*>>> .*?|Cannot (?:unify|cast) .*?|unimplemented .*?)\b(float8_\w+)", ONLY_COPIED),
    (r"No implementation of function Function\(<class 'str'>\)", "kernels cannot make strings of numbers, such as f-strings"),
    (r"Unknown attribute '(\w+)' of type Module\(<module '([\w.]+)'", "kernels cannot use {1}.{0}"),
    (r"No implementation of function [\s\S]*?\n\s*>>> (.*)", "there is no {0} in kernels"),
    (r"Untyped global name '(\w+)': Cannot determine Numba type of <class '([\w.]+)'>", "kernels cannot use the global {0} of type {1}"),
    (r"(?m)^(?!Failed in|\s*$)(.*\S)", "{0}"),
    (r"(.*)", "{0}"),
)


def reason(error: BaseException, function: Any) -> str:
    """Return why a kernel does not compile, and the line. function: function of the kernel."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)) or type(error).__name__
    sentence = next(words.format(*m.groups()) for pattern, words in _SENTENCES if (m := re.search(pattern, text)))
    own = function.__code__.co_filename
    places = (place for place in _places(error, text) if place[0] == own or _is_users(place[0]))
    file, line = next(places, (own, function.__code__.co_firstlineno))
    source = linecache.getline(file, line).strip()
    return f"{sentence} ({file}:{line}{': ' if source else ''}{source})"


def _is_users(file: str) -> bool:
    return Path(file).is_absolute() and not file.startswith(_FOREIGN)


def _places(error: BaseException, text: str) -> Iterator[tuple[str, int]]:
    """Yield files and lines of what was being compiled, innermost first: those in the message, then those in the traceback."""
    for found in re.finditer(r" at ([/<]\S+) \((\d+)\)", text):
        yield found[1], int(found[2])
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        frames, traceback = [], chain.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        for holder in (chain, *(value for frame in reversed(frames) for value in frame.f_locals.values())):
            place = getattr(holder, "loc", None)
            file, line = getattr(place, "filename", None), getattr(place, "line", None)
            if isinstance(file, str) and isinstance(line, int):
                yield file, line
        chain = chain.__cause__ or chain.__context__
