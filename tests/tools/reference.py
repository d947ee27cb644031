"""The generated part of docs/: a page per chapter of the API from signatures and docstrings, the variables, the refusals, and, in
porting.md, the table of nvshmem4py's names.

``python tests/tools/reference.py`` (``make docs``) writes the pages; tests/test_docs.py checks that the committed pages are up to date.
Docstrings have Google's form and one more section, ``Completion:``, whose items say what holds ``on return`` and when an operation is
``complete``; the table at the head of a page is made from it.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pgas
from pgas.api import host_collectives, host_ops
from pgas.base import config
from pgas.kernels import refusals
from pgas.kernels.compiler.binding import HOST_FORMS
from pgas.nvshmem import core

DOCS = Path(__file__).resolve().parents[2] / "docs"

N_TRANSPORTS = 3

SCOPES = ("_warp", "_block")
SECTIONS = ("Args", "Returns", "Raises", "Warns", "Completion", "Attributes", "Example")


@dataclass(frozen=True)
class Chapter:
    """A page of the API: its file, title, introduction, and a pattern of the names on it."""

    file: str
    title: str
    about: str
    names: str


#: In the order of the index. A name is on the first page whose pattern matches it completely.
CHAPTERS = (
    Chapter(
        "setup", "Starting and ending a job", "", r"init|unique_id|finalize|info|allgather_object|broadcast_object|SIMULATOR|__version__"
    ),
    Chapter("memory", "Symmetric memory", "", r"(empty|zeros|full)(_like)?|ones|array|free|SymmetricArray|(un)?register"),
    Chapter("kernels", "Kernels", "Compiling and launching kernels, and waiting for them.", r"jit|launch|synchronize|cuda"),
    Chapter("queries", "Queries", "", r"my_pe|n_pes|ptr"),
    Chapter(
        "rma",
        "Remote memory access",
        "put and p write to another PE's memory, get and g read from it. Arguments are always `dest, source, ..., pe`.",
        r"(put|get)(_nbi)?(_warp|_block)?|i(put|get)(_warp|_block)?|p|g|give_smem.*",
    ),
    Chapter(
        "signals",
        "Signals",
        "A signal is a uint64 word on the symmetric heap. A PE waits for it to learn that data has arrived.",
        r"SIGNAL_.*|put_signal.*|signal_(op|fetch)",
    ),
    Chapter("atomics", "Atomic operations", "", r"atomic_.*"),
    Chapter(
        "waiting",
        "Waiting",
        "Waits and tests read elements of this PE's own arrays, which other PEs write. A wait of PGAS_TIMEOUT seconds is an error.",
        r"(signal_)?(wait_until|test)(_(all|any|some).*)?|EQ|NE|GT|LE|LT|GE",
    ),
    Chapter("locks", "Locks", "", r"(set|test|clear)_lock"),
    Chapter("ordering", "Order and completion", "See also [the memory model](../memory-model.md).", r"fence|quiet.*|flush.*"),
    Chapter(
        "teams",
        "Teams",
        "[Collectives](collectives.md) are called on teams of PEs.",
        r"Team|TEAM_.*|team_(create|destroy|my_pe|n_pes|split_.*|translate_pe)",
    ),
    Chapter(
        "collectives",
        "Barriers and collectives",
        "",
        r"((barrier|sync)_all|team_sync|barrier|alltoallv?|broadcast|f?collect|reduce(scatter)?|(in|ex)scan|(max|min)loc)(_warp|_block)?"
        r"|SUM|PROD|MIN|MAX|AND|OR|XOR",
    ),
    Chapter(
        "errors",
        "Errors",
        "A mistake of the caller is a `TypeError` or `ValueError` with the name of the argument, its value and what is allowed. In kernels "
        "it is Numba's `TypingError`, when the kernel is compiled. What the runtime or the hardware refuses is a `PgasError`.",
        r"reset|.*(Error|Warning)",
    ),
)


def chapter_of(name: str) -> Chapter:
    """Return the page of a public name.

    Raises:
        LookupError: no pattern of CHAPTERS matches it.
    """
    for chapter in CHAPTERS:
        if re.fullmatch(chapter.names, name):
            return chapter
    raise LookupError(f"pgas.{name} is on no page of docs/api: add it to a pattern of CHAPTERS in {Path(__file__).name}")


def head_of(name: str) -> str:
    """Return the name of the entry with a name's description: put for put_warp and put_block."""
    for scope in SCOPES:
        if name.endswith(scope) and hasattr(pgas, name.removesuffix(scope)):
            return name.removesuffix(scope)
    return name


# ------------------------------------------------------------------------------------------------------------------ docstrings


@dataclass
class Docstring:
    text: str  #: the text before the sections
    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  #: title -> (name or "", text)


def parse(text: str) -> Docstring:
    doc = Docstring("")
    for part in re.split(rf"\n\n(?=(?:{'|'.join(SECTIONS)}):(?:\s|$))", text.strip()):
        match = re.match(rf"({'|'.join(SECTIONS)}):[ \t]*(.*)", part, re.DOTALL)
        if match is None:
            doc.text = part
        elif match[1] == "Example":
            doc.sections["Example"] = [("", inspect.cleandoc(match[2]))]
        else:
            doc.sections[match[1]] = list(_items(match[2]))
    return doc


def _items(text: str) -> Iterable[tuple[str, str]]:
    """Return (name, description) of every item of a section, or ("", text) if it is plain text."""
    lines = inspect.cleandoc("\n" + text if text.startswith("\n") else text).splitlines()
    items: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and items:
            items[-1].append(line.strip())
        elif match := re.match(r"([\w., ]+?):\s+(.*)", line):
            items.append([match[1], match[2]])
        elif items and not items[-1][0]:
            items[-1].append(line)
        else:
            items.append(["", line])
    for name, *words in items:
        yield name, " ".join(words)


def markdown(text: str, inside: str = "") -> str:
    """Return a docstring's text as Markdown: code is marked, and public functions link to their entries, except in their own."""
    text = "\n\n".join(_filled(paragraph) for paragraph in re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL).split("\n\n"))

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name not in pgas.__all__:
            return f"`{name}()`" if hasattr(pgas, name) else match[0]
        if head_of(name) == inside:
            return f"`{name}()`"
        return f"[`{name}()`]({chapter_of(name).file}.md#{head_of(name).lower()})"

    parts = re.split(r"(`[^`]*`)", text)  # code is not changed
    plain = (re.sub(r"\b(?:pgas\.)?(\w+)\(\)", link, part.replace("<", "&lt;")) for part in parts[::2])
    return "".join(text for pair in zip(plain, [*parts[1::2], ""], strict=True) for text in pair)


def _filled(paragraph: str) -> str:
    """Return a text with each paragraph on one line, as GitHub shows line breaks in some texts; lists and tables are unchanged."""
    lines = paragraph.splitlines()
    return paragraph if any(re.match(r"\s|[-*|] ", line) for line in lines) else " ".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


# ------------------------------------------------------------------------------------------------------------------- the pages


def signature(name: str) -> str:
    """Return a function's call signature without annotations."""
    value = getattr(pgas, name)
    parameters = inspect.signature(value)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters.parameters.values()]
    return re.sub(r"<class '(?:numpy\.)?(\w+)'>", r"\1", f"pgas.{name}{inspect.Signature(bare)}")


def comment_above(name: str) -> str:
    """Return the text of the ``#:`` lines above the assignment of a public constant."""
    for module in {m for m in sys.modules.copy() if re.fullmatch(r"pgas\.(base|api|kernels)\.\w+", m)}:
        source = getattr(sys.modules[module], "__file__", None) or ""
        if not source.endswith(".py"):
            continue
        lines = Path(source).read_text(encoding="utf-8").splitlines()
        for i, line in enumerate(lines):
            if re.match(rf"([A-Z_]+, )*{name}\b[^=(]*= ", line):
                above: list[str] = []
                while lines[i - 1].startswith("#:"):
                    i -= 1
                    above.insert(0, lines[i].removeprefix("#:").strip())
                if above:
                    return " ".join(above)
    return ""


def entry(name: str) -> str:
    """Return the section of a page about a function with its forms, a class, an exception or a constant."""
    value = getattr(pgas, name)
    if not callable(value):
        return f"## {name}\n\n{markdown(comment_above(name) or 'The version of pgas.', name)}"
    doc = parse(inspect.getdoc(value) or "")
    parts = [f"## {name}"]
    forms = [name, *(name + scope for scope in SCOPES if name + scope in pgas.__all__)]
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            parts.append("Bases: " + ", ".join(f"`{base.__name__}`" for base in value.__bases__))
    else:
        parts.append("```\n" + "\n".join(signature(form) for form in forms) + "\n```")
    parts.append(markdown(doc.text, name))
    if name in HOST_FORMS:
        parts.append("May also be called [on the host](host.md), immediately or on a stream.")
    parts += [f"`{form}`: {markdown(parse(inspect.getdoc(getattr(pgas, form)) or '').text, name)}" for form in forms[1:]]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        parts += [section for section in _members(value) if section]
    for title, items in doc.sections.items():
        if title == "Completion":
            continue
        if title == "Example":
            parts.append(f"```pycon\n{items[0][1]}\n```")
            continue
        if title in ("Args", "Attributes"):
            rows = [(", ".join(f"`{n.strip()}`" for n in names.split(",")), markdown(text, name)) for names, text in items]
            parts.append(table(("argument" if title == "Args" else "attribute", ""), rows))
        elif all(not item for item, _ in items):
            parts.append(f"**{title}** " + " ".join(markdown(text, name) for _, text in items))
        else:
            parts.append(f"**{title}**\n\n" + "\n".join(f"- {f'`{item}`: ' if item else ''}{markdown(text, name)}" for item, text in items))
    return "\n\n".join(parts)


def _members(value: type) -> Iterable[str]:
    """Return the sections about a class's public methods and properties."""
    rows = []
    for name, member in vars(value).items():
        if not name.startswith("_") and (text := inspect.getdoc(member)):
            rows.append((f"`{name}`", markdown(parse(text).text)))
    if rows:
        yield table(("method", ""), rows)


def completion(names: Iterable[str]) -> str:
    """Return the table of the sections Completion; empty if there are none."""
    rows = []
    for name in names:
        value = getattr(pgas, name)
        said = dict(parse(inspect.getdoc(value) or "").sections.get("Completion", [])) if callable(value) else {}
        if said:
            when = (markdown(said.get(when, "").removesuffix(".")) for when in ("on return", "complete"))
            rows.append((f"[`{name}`](#{name.lower()})", *when))
    return table(("", "on return", "complete"), rows) if rows else ""


def page(chapter: Chapter) -> str:
    names = [name for name in pgas.__all__ if chapter_of(name) is chapter]
    order = _source_order()
    heads = sorted({head_of(name) for name in names}, key=lambda name: (order.get(name, (99, 0)), name))
    constants = [name for name in heads if not callable(getattr(pgas, name)) and name != "__version__"]
    others = [name for name in heads if name not in constants]
    parts = [f"# {chapter.title}", chapter.about, _opening(others), *_leads(names), completion(others)]
    if constants:
        by_text: dict[str, list[str]] = {}
        for name in constants:
            by_text.setdefault(comment_above(name), []).append(name)
        rows = [(", ".join(f"`pgas.{n}`" for n in same), markdown(text)) for text, same in by_text.items()]
        parts.append(table(("constant", ""), rows))
    parts += [entry(name) for name in others]
    return "\n\n".join(part for part in parts if part) + "\n"


def _source_order() -> dict[str, Any]:
    """Return (module, line) of a public name's definition. Pages have the order of the sources, modules in alphabetical order."""
    modules = {_module_of(n) for n in pgas.__all__ if callable(getattr(pgas, n))}
    modules = sorted(modules, key=lambda name: name.rpartition(".")[2])
    found = {}
    for name in pgas.__all__:
        value = inspect.unwrap(getattr(pgas, name))
        if callable(value):
            module = _module_of(name)
            if value.__module__ == module:
                line = inspect.getsourcelines(value)[1]
            else:
                line = inspect.getsource(sys.modules[module]).split(f"\nclass {name}(")[0].count("\n")
            found[name] = (modules.index(module), line)
    return found


def _module_of(name: str) -> str:
    """Return the module that defines a public name; exceptions say that they are of pgas itself."""
    value = getattr(pgas, name)
    return "pgas.base.errors" if value.__module__ == "pgas" else value.__module__


def _opening(heads: list[str]) -> str:
    """Return the sections of the specification, from the first lines of a page's modules."""
    modules = dict.fromkeys(_module_of(name) for name in heads if callable(getattr(pgas, name)))
    own = [module for module in modules if _is_on(module, heads)] or modules
    sections = [m for module in own for m in re.findall(r"OpenSHMEM 1\.5, (sections? [\d., toand]+\d)", sys.modules[module].__doc__ or "")]
    return f"OpenSHMEM 1.5, {' and '.join(dict.fromkeys(sections))}." if sections else ""


def _is_on(module: str, heads: list[str]) -> bool:
    """Whether a module has a list of exported names, which are all described under these heads."""
    exported = getattr(sys.modules[module], "__all__", None)
    return exported is not None and {head_of(name) for name in exported} <= set(heads)


def _leads(names: list[str]) -> Iterable[str]:
    """Return the rest of the docstrings of modules whose functions are all on one page."""
    for module in dict.fromkeys(getattr(pgas, name).__module__ for name in names if inspect.isfunction(getattr(pgas, name))):
        if _is_on(module, names):
            _, _, body = (sys.modules[module].__doc__ or "").partition("\n\n")
            if body:
                yield markdown(re.sub(r"On the host, and on CUDA streams: \S+\.", "", body).strip())


def host() -> str:
    """Return the page about device functions on the host."""
    first, _, body = (host_ops.__doc__ or "").partition("\n\n")
    teams = markdown((host_collectives.__doc__ or "").partition("\n\n")[2].strip())
    calls = "\n".join(_host_signature(name) for name in pgas.__all__ if name in HOST_FORMS)
    title = "# Operations on the host"
    return f"{title}\n\n{markdown(first)}\n\n```\n{calls}\n```\n\n{markdown(body.strip())}\n\n## Collectives of teams\n\n{teams}\n"


def _host_signature(name: str) -> str:
    """Return the signature of a device function on the host: without qp and smem."""
    parameters = [p for p in inspect.signature(getattr(pgas, name)).parameters.values() if p.name not in ("qp", "smem")]
    bare = [p.replace(annotation=p.empty) for p in parameters]
    return f"pgas.{name}{inspect.Signature(bare)}"


def refused() -> str:
    intro = (
        "pgas refuses what it cannot do, and never does something else instead. These are all refusals, with their messages; names in "
        "braces are filled in. A pair of transports refuses what either refuses. "
        "`pgas.init()` refuses settings that do not fit the machine (a transport, a device); `python -m pgas doctor` "
        "says what is missing."
    )
    parts = ["# What is refused", intro]
    for when in refusals.When:
        rows = [
            (_plain(row.what), "all" if len(row.transports) == N_TRANSPORTS else " or ".join(row.transports), f"`{row.message}`")
            for row in refusals.TABLE.values()
            if row.when is when
        ]
        parts += [f"## {when.name.capitalize()}: {when.value}", table(("condition", "transports", "message"), rows)]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return text.replace("[", r"\[").replace("<", "&lt;")


def index() -> str:
    rows = []
    for chapter in CHAPTERS:
        heads = dict.fromkeys(head_of(name) for name in pgas.__all__ if chapter_of(name) is chapter)
        rows.append((f"[{chapter.title}]({chapter.file}.md)", " ".join(f"`{name}`" for name in heads)))
    rows.append(("[Operations on the host](host.md)", "device operations called from the host, immediately or on a stream"))
    intro = (
        "Kernels call the functions that move data, wait, and order operations. All threads of a warp or block must call the forms with "
        "`_warp` and `_block` together. An entry states whether the host may also call a function. `help(pgas.put)` prints the same "
        "text.\n\n"
        "Examples are run on two PEs, by a program with `import numpy as np`, `import pgas`, `from pgas import cuda` and `pgas.init()`."
    )
    return f"# API\n\n{intro}\n\n{table(('page', 'names'), rows)}\n"


def variables() -> str:
    rows = [(f"`{v.name}`", v.type, f"`{v.default}`" if v.default else "", v.meaning) for v in config.VARIABLES.values()]
    intro = (
        "`pgas.init()` reads these variables. They must be the same on all PEs, except `PGAS_HCA`, `PGAS_HCA_LIST`, "
        "`PGAS_IB_GID_INDEX` and the launchers' secrets. An empty value means the default. A value that is not allowed is a `ValueError` "
        "that names it; an unknown `PGAS_` variable is a warning. `python -m pgas info` prints this table with the values that are set. "
        "Sizes take the units K, M, G and T."
    )
    return f"# Environment variables\n\n{intro}\n\n{table(('variable', 'type', 'default', 'meaning'), rows)}\n"


#: The recorded names of nvshmem4py: lines "module:", each followed by lines of names.
NVSHMEM4PY = Path(__file__).resolve().parents[1] / "golden" / "nvshmem4py-0.4.1.txt"


def names_of_nvshmem4py() -> dict[str, list[str]]:
    """Return its public names, by module."""
    parts = re.split(r"^([\w.]+):$", NVSHMEM4PY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {module: names.split() for module, names in zip(parts[1::2], parts[2::2], strict=True)}


#: Modules of nvshmem4py, and the objects here that have their names.
COUNTERPARTS = {"nvshmem.core": core, "nvshmem.core.utils": core.memory, "nvshmem.core.device": core.device,
                "nvshmem.core.device.numba": core.device.numba}  # fmt: skip


def status_of(module: str, name: str) -> tuple[str, str]:
    """Return covered, differs, or missing, and what a program notices, or what to use instead."""
    counterpart = COUNTERPARTS.get(module)
    if name in getattr(counterpart, "MISSING", {}):
        return "missing", counterpart.MISSING[name]  # type: ignore[union-attr]
    if not hasattr(counterpart, name):
        return "missing", "pgas has device functions for Numba only; use nvshmem.core.device.numba"
    note = getattr(counterpart, "DIFFERS", {}).get(name, "")
    return ("differs" if note else "covered"), note


def _folded(names: list[str]) -> list[str]:
    """Return names in which ``put[_warp, _block]`` stands for three."""
    forms = {name for name in names if all(name + scope in names for scope in SCOPES)}
    others = [name for name in names if not any(name.removesuffix(scope) in forms and name.endswith(scope) for scope in SCOPES)]
    return [f"`{name}[_warp, _block]`" if name in forms else f"`{name}`" for name in others]


def porting() -> str:
    """Return the page about NVSHMEM, with the table of nvshmem4py's names made anew."""
    text = (DOCS / "porting.md").read_text(encoding="utf-8")
    head, begin, _rest = text.partition("<!-- The rest of this section is generated: make docs. -->\n")
    rows: list[tuple[str, str, str, str]] = []
    for module, names in names_of_nvshmem4py().items():
        found: dict[tuple[str, str], list[str]] = {}
        for name in names:
            found.setdefault(status_of(module, name), []).append(name)
        for (status, note), group in sorted(found.items()):
            rows.append((f"`{module}`", status, " ".join(_folded(group)), note))
    return f"{head}{begin}\n{table(('module', 'status', 'names', 'what differs, or what to use instead'), rows)}\n"


#: Generated files under docs/, and the functions that return their text.
PAGES: dict[str, Callable[[], str]] = {
    "api/README.md": index,
    **{f"api/{chapter.file}.md": (lambda chapter=chapter: page(chapter)) for chapter in CHAPTERS},
    "api/host.md": host,
    "porting.md": porting,
    "refusals.md": refused,
    "variables.md": variables,
}


def main() -> None:
    """Write every page, and remove obsolete pages of the API."""
    for name, make in PAGES.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    for path in (DOCS / "api").glob("*.md"):
        if path.relative_to(DOCS).as_posix() not in PAGES:
            path.unlink()


if __name__ == "__main__":
    main()
