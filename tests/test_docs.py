"""README and docs: sessions print the shown output, generated pages match the sources, links have targets."""

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from dataclasses import replace

import examples
import forks
import pytest
import reference
from examples import PAGES, ROOT

import pgas

README = ROOT / "README.md"
COMMANDS = [command for page in PAGES for command in examples.commands(page)]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def sessions():
    """Return all commands; make check runs the first of every page, the others are slow."""
    later = [command.number > 0 for command in COMMANDS]
    return [pytest.param(command, marks=[pytest.mark.slow] * slow, id=str(command)) for command, slow in zip(COMMANDS, later)]


@pytest.mark.parametrize("command", sessions())
def test_sessions(command, tmp_path):
    assert not examples.unlike(command.output, examples.run(command, tmp_path))


def test_the_exercise_without_a_fence(tmp_path):
    """As the text says: delete the line, and run the command."""
    page = ROOT / "docs" / "getting-started.md"
    text = page.read_text(encoding="utf-8")
    seed = re.search(r"PGAS_SIM_WEAK=(\d+) mpirun -n 2 python hello\.py", text)[1]
    without = tmp_path / page.name
    without.write_text(text.replace("        pgas.fence()  # the flag arrives after the letter\n", "", 1), encoding="utf-8")
    command = examples.commands(without)[0]
    assert command.arguments == ("hello.py",)
    assert "_" in examples.run(replace(command, environment=(("PGAS_SIM_WEAK", seed),)), tmp_path)


def test_the_hang_report_is_that_of_the_program(tmp_path):
    """Every line of docs/hangs.md, and only lines that its table explains."""
    page = ROOT / "docs" / "hangs.md"
    blocks = dict(examples.blocks(page))
    program = tmp_path / "lost.py"
    program.write_text(blocks["python"], encoding="utf-8")
    *settings, _mpirun, _n, npes, _python, name = blocks["sh"].split()
    assert name == program.name
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | dict(s.split("=") for s in settings)
    command = [*examples.mpirun(int(npes)), forks.python(), str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode != 0, done.stderr
    assert not examples.unlike((*blocks["text"].splitlines(), "..."), done.stderr)
    explained = re.findall(r"^\| `(.*?)`", page.read_text(encoding="utf-8"), re.MULTILINE)
    for line in re.findall(r"^pgas: PE \d: +(.*)", done.stderr, re.MULTILINE):
        assert any(re.match(re.escape(words).replace(r"\.\.\.", ".*"), line) for words in (*explained, "host: ", "block 0, thread 3: ")), (
            line
        )


def test_a_failed_test_and_the_conftest_of_the_page(tmp_path):
    """One PE fails before a barrier that the other one calls: the test fails on both, and later ones pass."""
    conftest = next(text for language, text in examples.blocks(ROOT / "docs" / "getting-started.md") if "def in_step" in text)
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_job.py").write_text(
        """import pgas, pytest

        @pgas.jit
        def fill(data, pe):
            pgas.p(data, 0, 1.0, pe)

        @pytest.mark.parametrize("pe", [0, 1])
        def test_a(pe):
            assert pgas.my_pe() != pe
            pgas.barrier_all()
            pgas.barrier_all()

        def test_b():
            with pgas.zeros(1) as data:
                with pytest.raises(pgas.DeviceError):
                    fill[1, 1](data, 2)
                    pgas.synchronize()
                pgas.reset()

        @pytest.mark.parametrize("number", range(3))
        def test_c(number):
            assert pgas.allgather_object(number) == [number] * 2
            with pgas.zeros(3):
                pgas.barrier_all()
        """.replace("\n        ", "\n"),
        encoding="utf-8",
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | {"PGAS_DEBUG": "check"}
    command = [*examples.mpirun(2), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "-rA"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False)
    ends = sorted(re.findall(r"^(PASSED|FAILED|ERROR) test_job\.py::(\S+)", done.stdout, re.MULTILINE))
    failed, passed = ("test_a[0]", "test_a[1]"), ("test_b", "test_c[0]", "test_c[1]", "test_c[2]")
    expected = [("FAILED", name) for name in failed] + [("PASSED", name) for name in passed]
    assert ends == [end for end in expected for _pe in range(2)], done.stdout + done.stderr


@pytest.mark.parametrize("npes", [1, 3])
def test_the_program_of_the_readme_with_any_number_of_pes(tmp_path, npes):
    command = next(c for c in COMMANDS if c.page == README)
    expected = tuple(f"PE {pe} got {float((pe - 1) % npes)} from its left neighbor" for pe in range(npes))
    assert not examples.unlike(expected, examples.run(command, tmp_path, npes))


def test_what_a_session_may_print():
    """In any order, with lines of two PEs joined, but nothing missing and nothing added."""
    expected = ("PE 0 got 1", "PE 10 got 1", "PE 1 got 0")
    assert not examples.unlike(expected, "PE 1 got 0PE 10 got 1\n\nPE 0 got 1\n")
    assert "missing" in examples.unlike(expected, "PE 1 got 0\nPE 0 got 1\n")
    assert "not expected: 'what'" in examples.unlike(expected, "PE 1 got 0\nPE 10 got 1\nwhat\nPE 0 got 1\n")
    assert not examples.unlike(("PE 0 got 1", "..."), "PE 1 got 0\nPE 0 got 1\n")
    assert not examples.unlike(("PE ... got 1 (really)",), "PE 1, in time, got 1 (really)\n")
    assert "missing" in examples.unlike(("PE ... got 1",), "PE 0 got 2\n")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_program_is_run_and_every_part_parses(page):
    used = {command.program for command in COMMANDS if command.page == page and command.after is None}
    assert used == examples.programs(page).keys()
    program = [line.strip() for line in "".join(examples.programs(page).values()).splitlines()]
    for language, text in examples.blocks(page):
        if language == "python":
            ast.parse(text)
            if page.parent.name == "gallery":  # the part is one of the program
                lines = [line.strip() for line in text.splitlines()]
                assert any(program[i : i + len(lines)] == lines for i in range(len(program))), text


#: Lines of programs of the gallery that may have more than 100.
LONGER = {"ep": 200}


def test_programs_of_the_gallery():
    """Each has a page, a line in the table, and at most 100 lines, or as many as LONGER says."""
    gallery = ROOT / "docs" / "gallery"
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\)", (gallery / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in gallery.glob("*.py"))
    assert {path.stem for path in gallery.glob("*.md")} == {*listed, "README"}
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in gallery.glob("*.py")}
    assert {stem: count for stem, count in lines.items() if count > LONGER.get(stem, 100)} == {}


@pytest.mark.slow
@pytest.mark.sass
def test_every_program_compiles_for_a_gpu(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")} | examples.STAND_INS | {"NUMBA_ENABLE_CUDASIM": "0"}
    command = [sys.executable, str(ROOT / "tests" / "support" / "compiled_pages.py"), "p2p", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{page.name} {name}" for page in PAGES for name in examples.programs(page, "@pgas.jit")]


# --------------------------------------------------------------------------------------------------------- coming from NVSHMEM


def porting_rows():
    text = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    text = text[text.index("## Device functions") : text.index("## Environment")]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_porting_names_everything_that_is_public():
    named = {name for row in porting_rows() for name in re.findall(r"`(\w+)`", row[-1])}
    assert set(pgas.__all__) - named == set()


def test_porting_names_nothing_that_does_not_exist():
    arguments = {"qp", "channel"}
    for row in porting_rows():
        for name in re.findall(r"`(\w+)`", row[-1]):
            assert hasattr(pgas, name) or name in arguments, name


# ------------------------------------------------------------------------------------------------------------ generated pages


@pytest.mark.skipif(not pgas.SIMULATOR, reason="capability missing: the simulator, in which pages are written (methods of arrays differ)")
@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_pages_match_the_sources(name):
    written = (reference.DOCS / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), f"docs/{name} does not match the sources: make docs"


def test_every_public_name_is_on_one_page():
    pages = {chapter.file: (reference.DOCS / "api" / f"{chapter.file}.md").read_text(encoding="utf-8") for chapter in reference.CHAPTERS}
    for name in pgas.__all__:
        matching = [chapter.file for chapter in reference.CHAPTERS if re.fullmatch(chapter.names, name)]
        assert len(matching) == 1, f"{name}: {matching}"
        described = [file for file, text in pages.items() if re.search(rf"^(## |pgas\.|\| .*`pgas\.){name}\b", text, re.MULTILINE)]
        assert described == matching, name


@pytest.mark.parametrize("file", ["rma", "signals", "atomics", "waiting", "ordering", "collectives"])
def test_every_function_says_when_it_is_complete(file):
    for name in pgas.__all__:
        if reference.chapter_of(name).file == file and inspect.isfunction(getattr(pgas, name)):
            sections = reference.parse(inspect.getdoc(getattr(pgas, reference.head_of(name)))).sections
            said = [when for when, _ in sections.get("Completion", [])]
            assert said == ["on return", "complete"], f"the docstring of pgas.{reference.head_of(name)} needs a section Completion:"


def test_pages_are_listed():
    assert {p.name for p in (reference.DOCS / "api").glob("*.md")} == {f"{c.file}.md" for c in reference.CHAPTERS} | {
        "README.md",
        "host.md",
    }


def test_an_unknown_name_is_refused_by_name():
    with pytest.raises(LookupError, match=r"pgas\.allreduce is on no page of docs/api: add it to a pattern of CHAPTERS in reference\.py"):
        reference.chapter_of("allreduce")


# ---------------------------------------------------------------------------------------------------------------------- links


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", examples.prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links(page):
    text = examples.prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target
    for path in re.findall(r"`((?:pgas|kernels|transports|tests|perftests|docs)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:`|^ {4}|\n)make ([a-z-]+)", text):
        assert target in targets, target
    for module in re.findall(r"python -m (pgas[\w.]*)", text):
        assert importlib.util.find_spec(module.rstrip(".")), module
