"""What a user sees of a mistake in a program: the program's own lines, and one sentence."""

import pickle
import re
import subprocess
import sys
import threading
import traceback
from types import SimpleNamespace

import forks
import pytest

import pgas
from pgas.base import config, errors, parameters, tracebacks

#: Mistakes: the call, the lines of the program in the traceback (of the call, and of the kernel), and the sentence.
MISTAKES = [
    ("pgas.put(a, b, target=0)", 1, "TypeError: pgas.put: there is no parameter target; the parameters"),
    ("pgas.put(a)", 1, "TypeError: pgas.put: missing a required argument: 'source'; the parameters are dest, source"),
    ("pgas.get(a, b, 0, 1, 2)", 1, "TypeError: pgas.get: too many positional arguments; the parameters are dest, source, pe, nelems"),
    ("pgas.p(a, 0, 1, PE=0)", 1, "TypeError: pgas.p: there is no parameter PE; the parameters are dest, idx, value, pe, stream"),
    ("pgas.put_signal(a, b)", 1, "TypeError: pgas.put_signal: missing a required argument: 'sig'"),
    ("pgas.iput(a, b, 1, 1, 0, lenght=1)", 1, "TypeError: pgas.iput: there is no parameter lenght; the parameters"),
    ("pgas.barrier_all(steam=0)", 1, "TypeError: pgas.barrier_all: there is no parameter steam (did you mean stream?); the parameters"),
    ("pgas.reduce(pgas.TEAM_WORLD, a, b, pgas.SUM, chanel=1)", 1, "TypeError: pgas.reduce: there is no parameter chanel (did you mean"),
    ("pgas.ptr(a)", 1, "TypeError: pgas.ptr: missing a required argument: 'pe'; the parameters are dest, pe"),
    ("pgas.zeros(4, dtyp=int)", 1, "TypeError: pgas.zeros: there is no parameter dtyp (did you mean dtype?); the parameters"),
    ("pgas.init(size=2, ranks=1)", 1, "TypeError: pgas.init: there is no parameter ranks (did you mean rank?); the parameters"),
    ("pgas.team_split_2d(pgas.TEAM_WORLD)", 1, "TypeError: pgas.team_split_2d: missing a required argument"),
    ("pgas.zeros(-1)", 1, "ValueError: pgas.zeros: shape must be non-negative integers, not -1"),
    ("pgas.free(a[1:])", 1, "ValueError: pgas.free: array is a view of the int64 array of shape (4,) allocated at "),
    ("pgas.free(np.zeros(3))", 1, "ValueError: pgas.free: array must be on the symmetric heap, not an array of float64 and shape (3,)"),
    ("freed.copy_to_host()", 1, "HeapError: use after free: int64 array of shape (4,) allocated at "),
    ("a.copy_to_device(np.zeros(5, np.int64))", 1, "ValueError: copy_to_device: the source has shape (5,), the array (4,)"),
    ("a[0] = 'x'", 1, "ValueError: invalid literal for int() with base 10: 'x'"),
    ("a[9]", 1, "IndexError: index 9 is out of bounds for axis 0 with size 4"),
    ("pgas.put(a, b, 5)", 1, "ValueError: pgas.put: pe must be an integer from 0 to 0, not 5"),
    ("pgas.put(a, b, False)", 1, "ValueError: pgas.put: pe must be an integer from 0 to 0, not False"),
    ("pgas.atomic_and(pgas.zeros(1), 0, 1, 0)", 1, "TypeError: pgas.atomic_and: dest has elements of type float64; it must hold integers"),
    ("kernel[1.5, 1](a, b, 0)", 1, "TypeError: kernel: grid must be an integer or up to three of them, not 1.5"),
    ("kernel[1, 1](a=a, b=b, which=0)", 1, "TypeError: kernel: the arguments of a kernel have no names in a launch; give a by"),
    ("kernel[1, 1](a, b, 5)", 2, "TypeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: pgas.barrier_all: there is no parameter stream; it has none"),
    ("pgas.syncronize()", 1, "AttributeError: module 'pgas' has no attribute 'syncronize'. Did you mean: 'synchronize'?"),
    ("kernel[1, 1](a, freed, 0)", 1, "HeapError: use after free: int64 array of shape (4,) allocated at "),
    ("kernel[1, 1](a)", 1, "TypeError: kernel: the kernel takes 3 arguments (a, b, which), not 1"),
    ("kernel[1, 1].bind(a, b)", 1, "TypeError: kernel: the kernel takes 3 arguments (a, b, which), not 2"),
    ("pgas.launch(kernel, 1, 1, (a, b, 0, 0))", 1, "TypeError: pgas.launch: kernel: the kernel takes 3 arguments (a, b, which), not 4"),
    ("kernel[1, 2000](a, b, 0)", 1, "ValueError: kernel: a block of (2000, 1, 1) has 2000 threads, but must have 1 to 1024"),
    ("kernel[1, 1](a, b, 1)", 2, "TypeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: pgas.put: there is no parameter target; the parameters"),
    ("kernel[1, 1](a, b, 2)", 2, "NameError: tid=[0, 0, 0] ctaid=[0, 0, 0]: name 'unknown' is not defined"),
    ("kernel[1, 1](a, b, 3)", 2, "TypeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: pgas.zeros: this is a host function"),
    ("kernel[1, 1](a, b, 6)", 2, "OverflowError: tid=[0, 0, 0] ctaid=[0, 0, 0]: cannot convert float infinity to integer"),
    ("kernel[1, 1](a, b, 7)", 2, "OverflowError: tid=[0, 0, 0] ctaid=[0, 0, 0]: inf is beyond the integers that an element of type int64"),
    ("kernel[1, 1](a, b, 4)", 2, "DeviceError: PE 0, block 0, thread 0: put: PE 7 does not exist; pe must be 0 to 0"),
]  # fmt: skip

PROGRAM = """
import sys
import numpy as np
import pgas

@pgas.jit
def kernel(a, b, which):
    if which == 1:
        pgas.put(a, b, target=0)
    if which == 2:
        a[0] = unknown
    if which == 3:
        pgas.zeros(4)
    if which == 4:
        pgas.put(a, b, 7)
    if which == 5:
        pgas.barrier_all(stream=0)
    if which == 6:
        a[0] = float("inf")
    if which == 7:
        pgas.p(a, 0, float("inf"), 0)

pgas.init()
a, b, freed = (pgas.zeros(4, np.int64) for _ in range(3))
pgas.free(freed)
for mistake in sys.argv[1:]:
    print("---", file=sys.stderr)
    try:
        exec(compile(mistake, "mistake", "exec"))
    except Exception:
        sys.excepthook(*sys.exc_info())
"""


def shown(folder, *mistakes, **environment):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [str(forks.python()), str(program), *mistakes]
    done = subprocess.run(command, capture_output=True, text=True, env=forks.os.environ | environment, timeout=300, check=False)
    found = done.stderr.split("---\n")[1:]
    assert len(found) == len(mistakes), done.stderr
    return found


def frames(text):
    return re.findall(r'^  File "(.*)", line', text, re.MULTILINE)


def test_a_mistake_shows_the_program_and_one_sentence(tmp_path):
    for text, (_, lines, sentence) in zip(shown(tmp_path, *(m for m, _, _ in MISTAKES)), MISTAKES, strict=True):
        program = str(tmp_path / "program.py")
        assert frames(text) == [program, "mistake", program][: 1 + lines], text
        last = text.splitlines()[-1].removeprefix("pgas.")
        assert last.startswith(sentence), text
        assert text.count("Traceback") == 1, text


def test_all_frames_are_shown_on_request(tmp_path):
    host, kernel = shown(tmp_path, "pgas.zeros(-1)", "kernel[1, 1](a, b, 4)", PGAS_DEBUG="traceback")
    assert len(frames(host)) > 4
    assert len(frames(kernel)) > 10


@pytest.mark.parametrize(
    ("arguments", "lines", "environment", "sentence"),
    [
        ([], ["import os", "del os.environ['NUMBA_ENABLE_CUDASIM']", "from numba import cuda", "import pgas"],
         {"NUMBA_ENABLE_CUDASIM": "1", "CUDA_VISIBLE_DEVICES": ""}, "numba.cuda was imported before pgas"),
        (["-m", "pgas.run", "--as-nvshmem"], ["import nvshmem.core", "nvshmem.core.init(1, 2, 3, 4, 5, 6, 7)"], {}, "nvshmem.core.init"),
        ([], ["import pgas", "pgas.init()"], {"PGAS_TRACE": "timeline:/no/x"}, "PGAS_TRACE=timeline:/no/x: cannot write /no/x.0: No such"),
    ],
)  # fmt: skip
def test_only_the_line_of_the_program_is_shown(tmp_path, arguments, lines, environment, sentence):
    """Of an import that fails, of a program that pgas runs, and without the exception of Python that the sentence repeats."""
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    command = [sys.executable, *arguments, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=forks.os.environ | environment, timeout=300, check=False)
    assert frames(done.stderr) == [str(program)], done.stderr
    assert sentence in done.stderr.splitlines()[-1], done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr


def cut(call):
    with pytest.raises((KeyError, ValueError)) as caught:
        call()
    error = caught.value
    tracebacks.cut(error)
    entries = []
    tb = error.__traceback__
    while tb is not None:
        entries.append(tb.tb_frame.f_globals["__name__"])
        tb = tb.tb_next
    return [name for name in entries if name == __name__ or tracebacks.OF_PGAS.match(name)]


def test_a_mistake_of_pgas_itself_shows_all_frames():
    assert cut(lambda: config.read("PGAS_NO")) == [*[__name__] * 2, "pgas.base.config"]


def test_causes_are_cut_and_calls_of_other_libraries_are_not():
    def fails():
        try:
            pgas.jit(3)
        except TypeError as error:
            raise ValueError("outer") from error

    assert cut(fails) == [__name__] * 2
    with pytest.raises(ValueError, match="outer") as caught:
        fails()
    tracebacks.cut(caught.value)
    assert caught.value.__cause__.__traceback__.tb_next is None
    with pytest.raises(re.error) as broken:
        re.compile("(")
    tracebacks.cut(broken.value)
    assert broken.value.__traceback__.tb_next.tb_next is not None


def test_threads_of_the_host(capsys):
    thread = threading.Thread(target=lambda: pgas.jit(3))
    show = threading.excepthook
    tracebacks_of_pytest = threading.__excepthook__
    threading.excepthook = tracebacks_of_pytest
    hook = forks.sys.excepthook
    try:
        tracebacks.install()
        thread.start()
        thread.join()
    finally:
        threading.excepthook, forks.sys.excepthook = show, hook
    files = frames(capsys.readouterr().err)
    assert files[-1] == __file__
    assert not any("/pgas/" in file for file in files)


class Shell:
    """What pgas uses of IPython's shell."""

    def __init__(self):
        self.shown = []

    def showtraceback(self, exc_tuple=None, filename=None, tb_offset=None):
        self.shown.append((*exc_tuple, filename, tb_offset))


def test_a_shell_gets_cut_tracebacks(monkeypatch):
    """The current exception, and one that is given; also where IPython is not installed."""
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    tracebacks.install()
    try:
        pgas.jit(3)
    except TypeError as error:
        depth = len(list(traceback.walk_tb(error.__traceback__)))
        shell.showtraceback(tb_offset=1)
        kept = error
    shell.showtraceback((KeyError, KeyError(3), None), "file")
    (kind, error, tb, *rest), other = shell.shown
    assert (kind, error, rest) == (TypeError, kept, [None, 1])
    assert depth > 3
    assert len(list(traceback.walk_tb(tb))) == 1
    assert (other[0], *other[3:]) == (KeyError, "file", None)


PYTEST = """
import pgas, pytest

@pgas.jit
def kernel(a):
    pgas.put(a, a, 7)

def test_host():
    pgas.zeros(-1)

def test_kernel():
    kernel[1, 1](pgas.zeros(4))

def test_other():
    raise KeyError(3)

pgas.init()
"""


def test_pytest_shows_the_program_and_one_sentence(tmp_path):
    (tmp_path / "test_program.py").write_text(PYTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    for words, hidden in ("", True), ("traceback", False):
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=forks.os.environ | {"PGAS_DEBUG": words}, timeout=300, check=False
        )
        lines = re.findall(r"^>       (.*)|^(\S+/pgas/\S+):\d+: ", done.stdout, re.MULTILINE)
        programs, of_pgas = [line for line, _ in lines if line], [file for _, file in lines if file]
        assert "3 failed" in done.stdout, done.stdout
        assert (not of_pgas) is hidden, done.stdout
        if hidden:
            assert programs == ["pgas.zeros(-1)", "kernel[1, 1](pgas.zeros(4))", "pgas.put(a, a, 7)", "raise KeyError(3)"], done.stdout


def test_errors_are_named_and_pickled_as_pgas_has_them():
    for name in errors.__all__:
        kind = getattr(errors, name)
        place = (1, 2, 3, 4, 5) if kind is pgas.CompletionError else ()
        error = kind("text", *place)
        error.add_note("a note")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, vars(again)) == (getattr(pgas, name), error.args, vars(error))
        assert "".join(traceback.format_exception_only(again)) == f"pgas.{name}: text\na note\n"


def test_suggestions():
    assert parameters.suggestion("PGAS_TIMOUT", config.VARIABLES) == " (did you mean PGAS_TIMEOUT?)"
    assert parameters.suggestion("something", config.VARIABLES) == ""
