"""Rubbish in the flags of every command and in every variable: one sentence, exit status 2."""

import sys

import check_gpu
import compile_time
import figures
import pytest
import sass
from hypothesis import given
from hypothesis import strategies as st

from pgas import __main__ as commands
from pgas import run
from pgas.base import config
from pgas.base.text import host, integer, printable, real
from pgas.perftests import coll_latency, coll_on_stream, compare, ep, jacobi, overlap, shmem_atomic_bw, shmem_put_bw, shmem_put_latency
from pgas.perftests.harness import plot
from pgas.perftests.programs import __main__ as programs

#: Texts that no flag with a value takes, and no variable that is not free text.
RUBBISH = [
    "\N{SUPERSCRIPT TWO}", "\N{FULLWIDTH DIGIT ONE}", "\N{ARABIC-INDIC DIGIT THREE}", "1_0", "0x", "-", "--1", "1e", "nan", "inf", "-inf",
    "9" * 40, "9" * 5000, "-" + "9" * 40, "a..b:29400", "x" * 300, f"{'x' * 300}:1", "[::1", ":", "::", "1:", ",", "^", "/", "/nowhere/x",
    "\x1b[31m", "two\nlines", "\udcff", "[" * 2000, "{}", "%s", "%(prog)s", "$(id)", "\N{LATIN SMALL LETTER DOTLESS I}nfo",
]  # fmt: skip

PERFTESTS = (
    check_gpu, coll_latency, coll_on_stream, compare, compile_time, ep, figures, jacobi, overlap, sass, shmem_atomic_bw,
    shmem_put_bw, shmem_put_latency,
)  # fmt: skip

#: The commands, and arguments with which they are complete.
COMMANDS = {
    "run": (run.main, ["x.py"]),
    **{name: (commands.main, [name]) for name in ("info", "hca", "topo", "doctor")},
    "compile": (commands.main, ["compile", __file__]),
    **{module.__name__.rpartition(".")[2]: (module.main, []) for module in PERFTESTS},
    "plot": (plot.main, ["-o", "x.png", __file__]),
    "programs": (programs.main, []),
}

#: Flags with a value, of each command; "": the argument without a flag. File names and regular expressions may be any text.
FLAGS = {
    "run": ["-n", "--nnodes", "--node-rank", "--master"],
    "doctor": [""],
    "compile": ["--pes", "--transport"],
    "check_gpu": ["--at-once", "--seconds"],
    "coll_latency": ["-b", "-e", "-f", "-n", "-w", "-c", "-t", "-d", "-o", "-s", "--transport", "--seed"],
    "coll_on_stream": ["-b", "-e", "-f", "-n", "-w", "--transport", "--seed"],
    "compare": [""],
    "ep": ["--tokens", "--hidden", "--top-k", "--experts", "--blocks", "--threads", "--dtype", "--iters", "--seed", "--transport"],
    "jacobi": ["-nx", "-ny", "-niter", "-nccheck", "-blocks", "--transport"],
    "overlap": ["--m", "--n", "--k", "--chunks", "--blocks", "--iters", "--warmup_iters", "--transport"],
    "plot": [""],
    "programs": ["--count", "--seed", "--first", "--keep", "--soak", "--types", "--transport"],
    "sass": ["--transport", "--map-by", "--cc"],
    "shmem_atomic_bw": ["-a", "-t"],
    "shmem_put_bw": ["-b", "-e", "-f", "-n", "-w", "-c", "-t", "-d", "-s", "-i", "--transport", "--seed"],
    "shmem_put_latency": ["-n", "-s"],
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def reads(read, text):
    """Return the message of a reader that refuses a text, "" if it takes it."""
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return ""


def refused(name, arguments, monkeypatch, capsys):
    """The command prints one sentence, and ends with status 2."""
    main, _ = COMMANDS[name]
    own = {"coll_latency": "fcollect_latency", "coll_on_stream": "fcollect_on_stream"}.get(name, name)
    monkeypatch.setattr(sys, "argv", [own, *arguments])
    with pytest.raises(SystemExit) as ended:
        main(arguments) if name == "run" else main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.endswith("\n"), said
    assert printable(said[:-1], 2000) == said[:-1], said
    assert ": error: " in said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name, flags in FLAGS.items() for flag in flags])
def test_flags(name, flag, monkeypatch, capsys):
    rest = COMMANDS[name][1]
    for text in RUBBISH:
        given = [flag, text] if flag else ["--", text]
        before = 0 if flag and name != "compile" else 1 if flag else len(rest)
        refused(name, [*rest[:before], *given, *rest[before:]], monkeypatch, capsys)


#: Variables that are free text.
FREE = {"PGAS_CHECK_LOGS", "PGAS_SECRET", "PGAS_SOFTHCA_NET", "PGAS_STARTED_BY"}


@pytest.mark.slow
@pytest.mark.parametrize("variable", sorted(config.VARIABLES.keys() - FREE))
def test_variables(variable, monkeypatch, capsys):
    """Every command refuses what pgas.init() refuses. But doctor has a finding, and pgas.run does not know all transports of programs."""
    some = 0
    for text in RUBBISH:
        monkeypatch.setenv(variable, text)
        if not (said := reads(config.read, variable)):
            continue
        assert said.startswith(f"{variable}=")
        assert printable(said, 2000) == said
        for name in COMMANDS if not some else ("run", "info"):
            if name != "doctor" and (name, variable) != ("run", "PGAS_TRANSPORT"):
                refused(name, COMMANDS[name][1], monkeypatch, capsys)
        some += 1
    assert some > len(RUBBISH) / 2


@pytest.mark.slow
@pytest.mark.parametrize("variable", sorted(config.VARIABLES.keys() - FREE))
@given(text=st.text(max_size=12) | st.text("0123456789.,:=eExKMGT-+^_ \N{SUPERSCRIPT TWO}", max_size=12))
def test_any_text_in_a_variable(variable, text):
    """It has a value, or is refused in one line."""
    text = text.replace("\0", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, text)
        said = reads(config.read, variable)
    assert printable(said, 2000) == said
    assert not said or said.startswith(f"{variable}=")


@given(st.text(max_size=12) | st.integers().map(str))
def test_digits_are_ascii(text):
    for read, takes in ((integer, "+-0123456789"), (real, "+-.0123456789e"), (host, "abcdefghijklmnopqrstuvwxyz0123456789-_.:%/")):
        said = reads(read, text)
        assert printable(said, 2000) == said
        assert said or not set(text.strip().lower()) - set(takes)
