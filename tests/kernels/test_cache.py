"""The disk cache of @pgas.jit: its key covers everything that compiled code depends on; Numba's own cache is refused by name.

Programs run the real compiler (NUMBA_ENABLE_CUDASIM=0) and need no GPU: PRELUDE replaces the query of the compute capability and the
loading of code.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.sass

PRELUDE = """
import importlib, json, os, sys
from types import SimpleNamespace
import numba.cuda.compiler, numba.cuda.dispatcher
from numba import cuda
from numba.cuda import types
from numba.cuda.cudadrv import devices
import pgas
from pgas.base import disk_cache
from pgas.kernels import window
device = SimpleNamespace(compute_capability=(9, 0))
numba.cuda.compiler.get_current_device = numba.cuda.dispatcher.get_current_device = lambda: device
devices.get_context = lambda *args: SimpleNamespace(device=device)
numba.cuda.dispatcher._Kernel.bind = lambda self: None
shift, check = int(os.environ.get("SHIFT", "38")), os.environ.get("CHECK") == "1"
window.freeze(window.Constants(window.BASE, shift, "p2p", "pgas.kernels.paths.p2p", True, check))
SIGNATURE = types.float32[::1], types.int32

def hits(kernel, signature=SIGNATURE):
    kernel.dispatcher.compile(signature)
    return len(kernel.dispatcher._cache_hits)

def kept_kernels():
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(os.environ["NUMBA_CACHE_DIR"]) for name in names]
    return [path for path in paths if not os.path.basename(path).startswith("pgas.")]  # bodies of public functions begin so
"""


def python(folder, program, **variables):
    """Run a program with modules and cache in a folder; return the last line of its output, parsed as JSON."""
    path = folder / "program.py"
    if not path.exists() or path.read_text() != PRELUDE + program:  # Numba drops its cache of an older file
        path.write_text(PRELUDE + program)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PGAS_")}
    environment |= {"NUMBA_ENABLE_CUDASIM": "0", "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------------- the key

#: By name: source of module m, and a change (old, new) that a kernel in another module must see. The kernel calls m.f(x).
CHANGES = {
    "value of a global": ("N = 1\n@cuda.jit(device=True)\ndef f(x):\n    return x + N\n", ("N = 1", "N = 2")),
    "constant": ("@cuda.jit(device=True)\ndef f(x):\n    return x + 1.5\n", ("1.5", "2.5")),
    "operator": ("@cuda.jit(device=True)\ndef f(x):\n    return x + x\n", ("x + x", "x * x")),
    "function of another module": ("@cuda.jit(device=True)\ndef f(x):\n    return math.sin(x)\n", ("sin", "cos")),
    "attribute": ("@cuda.jit(device=True)\ndef f(x):\n    return x + cuda.threadIdx.x\n", ("threadIdx.x", "threadIdx.y")),
    "pgas function": ("@cuda.jit(device=True)\ndef f(x):\n    pgas.fence()\n    return x\n", ("fence", "quiet")),
    "device function further down": (
        "@cuda.jit(device=True)\ndef h(x):\n    return x + 1\n@cuda.jit(device=True)\ndef f(x):\n    return h(x)\n",
        ("x + 1", "x + 2"),
    ),
    "inner function": ("@cuda.jit(device=True)\ndef f(x):\n    def g(y):\n        return y * 5\n    return g(x)\n", ("5", "6")),
    "global of an inner function": (
        "N = 1\n@cuda.jit(device=True)\ndef f(x):\n    def g(y):\n        return y * N\n    return g(x)\n",
        ("N = 1", "N = 2"),
    ),
    "default": ("N = 1\n@cuda.jit(device=True)\ndef f(x, y=N):\n    return x + y\n", ("N = 1", "N = 2")),
    "member of an enumeration": (
        "class E(enum.IntEnum):\n    A = 1\n@cuda.jit(device=True)\ndef f(x):\n    return x + E.A\n",
        ("A = 1", "A = 2"),
    ),
    "array": ("N = np.arange(4)\n@cuda.jit(device=True)\ndef f(x):\n    return x + N[0]\n", ("arange(4)", "arange(1, 5)")),
    "dtype of an array": ("N = np.zeros(4, 'i4')\n@cuda.jit(device=True)\ndef f(x):\n    return x + N[0]\n", ("i4", "f4")),
    "large array": ("N = np.zeros(9999)\n@cuda.jit(device=True)\ndef f(x):\n    return x + N[0]\n", ("\n@", "\nN[5000] = 1\n@")),
    "tuple": ("N = (1, (2, 3))\n@cuda.jit(device=True)\ndef f(x):\n    return x + N[1][1]\n", ("3)", "4)")),
    "NumPy scalar": ("N = np.float32(1)\n@cuda.jit(device=True)\ndef f(x):\n    return x + N\n", ("float32", "float64")),
    "constant of a module": ("import other\n@cuda.jit(device=True)\ndef f(x):\n    return x + other.N\n", ("", "")),
    "variable of a closure": (
        "def make(n):\n    @cuda.jit(device=True)\n    def f(x):\n        return x + n\n    return f\nf = make(1)\n",
        ("make(1)", "make(2)"),
    ),
    "second use of a module": (
        "import m, other\n@cuda.jit(device=True)\ndef h(x):\n    return x + m.A\nA, B = 1, 1\n"
        "@cuda.jit(device=True)\ndef f(x):\n    return h(x) + m.A + g(x)\n@cuda.jit(device=True)\ndef g(x):\n    return x + m.B\n",
        ("A, B = 1, 1", "A, B = 1, 2"),
    ),
    "imported name": (
        "from pgas import fence as order\n@cuda.jit(device=True)\ndef f(x):\n    order()\n    return x\n",
        ("fence", "quiet"),
    ),
    "compiler's option": ("@cuda.jit(device=True, fastmath=False)\ndef f(x):\n    return x / 3\n", ("False", "True")),
}

#: Sources of module m whose kernel must not be cached at all.
UNCACHEABLE = {
    "object": "class C:\n    x = 1\nN = C()\n@cuda.jit(device=True)\ndef f(x):\n    return x + N.x\n",
    "object in a tuple": "class C:\n    x = 1\nN = (1, C())\n@cuda.jit(device=True)\ndef f(x):\n    return x + N[0]\n",
}

FINGERPRINTS = """
jit = importlib.import_module("pgas.api.jit")
folder = os.path.dirname(__file__)

def fingerprint(source, other=1):
    with open(os.path.join(folder, "other.py"), "w") as file:
        file.write(f"N = {other}\\n")
    with open(os.path.join(folder, "m.py"), "w") as file:
        file.write("import enum, math\\nimport numpy as np\\nimport pgas\\nfrom numba import cuda\\n" + source)
    with open(os.path.join(folder, "kernels.py"), "w") as file:
        file.write("import m\\ndef kernel(a):\\n    a[0] = m.f(a[0])\\n")
    for name in ("m", "other", "kernels"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    try:
        return jit._fingerprint(importlib.import_module("kernels").kernel)
    except disk_cache.Uncacheable:
        return None

changes, uncacheable = json.load(open(os.path.join(folder, "cases.json")))
found = {}
for name, (before, (old, new)) in changes.items():
    after = before.replace(old, new, 1) if old else before
    found[name] = [fingerprint(before), fingerprint(before), fingerprint(after, 1 if old else 2)]
found |= {name: fingerprint(source) for name, source in uncacheable.items()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def fingerprints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fingerprints")
    (folder / "cases.json").write_text(json.dumps([CHANGES, UNCACHEABLE]))
    return python(folder, FINGERPRINTS)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_key(change, fingerprints):
    before, again, after = fingerprints[change]
    assert before is not None
    assert before == again, "the key of equal code differs: the cache would never be hit"
    assert before != after, f"a changed {change} leaves the key as it was: stale code would run"


@pytest.mark.parametrize("case", UNCACHEABLE)
def test_what_has_no_value_is_not_cached(case, fingerprints):
    assert fingerprints[case] is None


# --------------------------------------------------------------------------------------------------------- on the disk

KERNEL = """
from m import f
@pgas.jit
def kernel(a, pe):
    pgas.p(a, 0, f(a[1]), pe)
"""


def device_function(folder, text):
    (folder / "m.py").write_text(f"from numba import cuda\n@cuda.jit(device=True)\ndef f(x):\n    return {text}\n")


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Return a folder whose cache has KERNEL. Runs change it, so the order of the tests below matters."""
    folder = tmp_path_factory.mktemp("warm")
    device_function(folder, "x + 1")
    assert python(folder, KERNEL + "print(hits(kernel))") == 0
    return folder


def test_second_process_finds_the_code(warm):
    assert python(warm, KERNEL + "print(hits(kernel))") == 1


@pytest.mark.slow
def test_an_operation_in_a_closure(tmp_path):
    """As host reductions have it."""
    program = """
def make(op):
    @pgas.jit
    def kernel(a, pe):
        a[pe] = 1.0 if op == 0 else 2.0
    return kernel
print(hits(make(pgas.SUM if os.environ["OP"] == "sum" else pgas.MAX)))
"""
    assert [python(tmp_path, program, OP=op) for op in ("sum", "sum", "max", "max")] == [0, 1, 0, 1]


def test_a_team_in_a_closure(tmp_path):
    """Code contains its number."""
    program = """
def within(team):
    @pgas.jit
    def kernel(a, pe):
        pgas.barrier(team)
    return kernel
print(hits(within(pgas.Team._of(int(os.environ["TEAM"]), pgas.job.memory.teams.Record((0,), 1, 0, "", True, 1)))))
"""
    assert [python(tmp_path, program, TEAM=number) for number in "3344"] == [0, 1, 0, 1]


def test_other_constants_are_another_entry(warm):
    assert python(warm, KERNEL + "print(hits(kernel))", SHIFT="39") == 0
    assert python(warm, KERNEL + "print(hits(kernel))", SHIFT="38") == 1
    assert python(warm, KERNEL + "print(hits(kernel))", CHECK="1") == 0


def test_changed_device_function_of_another_file(warm):
    device_function(warm, "x * 2")
    assert python(warm, KERNEL + "print(hits(kernel))") == 0
    assert python(warm, KERNEL + "print(hits(kernel))") == 1


@pytest.mark.slow
def test_options_of_the_kernel(tmp_path):
    program = """
@pgas.jit(fastmath=os.environ["FAST"] == "1")
def kernel(a, pe):
    pgas.p(a, 0, a[1] / 3, pe)
print(hits(kernel))
"""
    assert [python(tmp_path, program, FAST=fast) for fast in "0101"] == [0, 0, 1, 1]


@pytest.mark.slow
def test_cache_can_be_left_out(tmp_path):
    device_function(tmp_path, "x + 1")
    program = KERNEL.replace("@pgas.jit", "@pgas.jit(cache=False)")
    assert python(tmp_path, f"{program}hits(kernel)\nprint(json.dumps(kept_kernels()))") == []


@pytest.mark.slow
def test_uncacheable_kernel_compiles_and_leaves_no_file(tmp_path):
    program = """
jit = importlib.import_module("pgas.api.jit")
value = jit._value
def none_for_floats(what, *rest):
    if isinstance(what, float):
        raise disk_cache.Uncacheable("no value to put into a key")
    return value(what, *rest)
jit._value = none_for_floats
ONE = 1.0
@pgas.jit
def kernel(a, pe):
    pgas.p(a, 0, ONE, pe)
assert hits(kernel) == 0
print(json.dumps(kept_kernels()))
"""
    for _ in range(2):
        assert python(tmp_path, program) == []


@pytest.mark.slow
def test_kernel_that_links_other_code_compiles_and_leaves_no_file(tmp_path):
    """numba-cuda links a file for reshape, and cannot pickle kernels with linked files."""
    program = """
@pgas.jit
def kernel(a, pe):
    pgas.put(a.reshape(a.size), a.reshape(a.size), pe)
assert hits(kernel, (types.float32[:, ::1], types.int32)) == 0
print(json.dumps(kept_kernels()))
"""
    for _ in range(2):
        assert python(tmp_path, program) == []


@pytest.mark.slow
def test_kernel_without_a_file_compiles(tmp_path):
    """Kernels from the Python prompt or exec() have no source file, so they are not cached; that is no error."""
    program = """
text = "@pgas.jit\\ndef kernel(a, pe):\\n    pgas.p(a, 0, 1.0, pe)\\n"
names = {"pgas": pgas}
exec(compile(text, "<stdin>", "exec"), names)
print(hits(names["kernel"]))
"""
    assert python(tmp_path, program) == 0


SPOILT = """
import resource, warnings
def told():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", pgas.PgasWarning)
        found = hits(pgas.jit(kernel.dispatcher.py_func))
    return found, [str(one.message) for one in said if one.category is pgas.PgasWarning]
fresh = told()
(path,) = kept_kernels()
os.truncate(path, 1000)
broken = told()
os.unlink(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(json.dumps([path, fresh, broken, told()]))
"""


@pytest.mark.slow
def test_a_broken_file_and_a_full_disk(warm):
    """Each is a warning that names the file, and the kernel is compiled."""
    path, fresh, broken, full = python(warm, KERNEL + SPOILT)
    assert os.path.basename(os.path.dirname(path)) == "pgas"
    assert fresh == [0, []]
    assert broken == [0, [f"{path} was not loaded, so the code is being recompiled: it is broken (1000 bytes)"]]
    assert full == [0, [f"{path} cannot be written, so code is compiled in every process: File too large"]]


# ------------------------------------------------------------------------------------------- bodies of public functions

BODIES = """
import numba.cuda.compiler as numba_compiler
from pgas import sass
functions, compile_extra = [], numba_compiler.compile_extra
def counting(*args, **kwargs):
    functions.append(args)
    return compile_extra(*args, **kwargs)
numba_compiler.compile_extra = counting
kind = {"f4": types.float32, "f2": types.float16}[os.environ.get("KIND", "f4")]

def exchange(a, b, arrived, pe):
    pgas.put_signal_block(a, b, arrived, 0, 1, pgas.SIGNAL_SET, pe)
    pgas.signal_wait_until(arrived, 0, pgas.GE, 1)
    pgas.barrier_all_block()

def before(a, b, arrived, pe):
    pgas.put_block(a, b, pe)
    pgas.barrier_all()

if "BEFORE" in os.environ:  # Numba numbers the functions of exchange differently then.
    sass.build(before, (kind[::1], kind[::1], types.uint64[::1], types.int32))
functions.clear()
built = sass.build(exchange, (kind[::1], kind[::1], types.uint64[::1], types.int32))
print(json.dumps([len(functions), [built.opcode(i) for i in built.instructions], built.registers]))
"""


def test_another_process_compiles_only_the_kernel(tmp_path):
    """The three functions that it calls are kept, and their code is the same, whatever was compiled before."""
    fresh, *code = python(tmp_path, BODIES)
    assert fresh > 20
    assert python(tmp_path, BODIES, BEFORE="1") == [1, *code]


def test_bodies_for_other_types_and_constants(tmp_path):
    """Each is compiled once."""
    changes = {}, {"KIND": "f2"}, {"CHECK": "1"}
    first, second = ([python(tmp_path, BODIES, **change) for change in changes] for _ in range(2))
    assert all(count > 1 for count, *_ in first)
    assert second == [[1, *code] for _, *code in first]
    assert len({str(code) for _, *code in first}) == 3


def test_debug_kernels_use_no_kept_bodies(tmp_path):
    """Numba compiles the modules of such a kernel one by one, so that each must define its function for others."""
    program = (
        BODIES
        + """
kernel = pgas.jit(cache=False, debug=True, opt=False)(exchange)
kernel.dispatcher.compile((kind[::1], kind[::1], types.uint64[::1], types.int32))
(compiled,) = kernel.dispatcher.overloads.values()
print(json.dumps(sorted({type(module).__name__ for module in compiled._codelibrary.modules})))
"""
    )
    assert [python(tmp_path, program) for _ in range(2)] == [["Module"]] * 2


def test_bodies_of_reductions_differ(tmp_path):
    program = """
from pgas.kernels.compiler.numba_cuda_bodies import _description
print(json.dumps([_description(cuda.typing.typeof.typeof(op)) for op in (pgas.SUM, pgas.MAX, pgas.PROD)]))
"""
    assert len(set(python(tmp_path, program))) == 3


# ------------------------------------------------------------------------------------------------- Numba's own cache

REFUSALS = """
found = {}
def compiled(name, kernel, signature):
    try:
        kernel.compile(signature)
    except TypeError as error:
        found[name] = str(error)
    else:
        found[name] = None

@cuda.jit(cache=True)
def plain(a, pe):
    a[0] = pe
compiled("plain", plain, SIGNATURE)

@cuda.jit(cache=True)
def calls_p(a, pe):
    pgas.p(a, 0, 1.0, pe)
compiled("calls_p", calls_p, SIGNATURE)

@cuda.jit(device=True)
def inner(a, pe):
    a[0] = pgas.g(a, 1, pe)
@cuda.jit(cache=True)
def calls_inner(a, pe):
    inner(a, pe)
compiled("calls_inner", calls_inner, SIGNATURE)
@cuda.jit(cache=True)
def calls_inner_too(a, pe):  # inner is compiled already
    inner(a, pe)
compiled("calls_inner_too", calls_inner_too, SIGNATURE)

@cuda.jit(cache=True)
def calls_my_pe(a, pe):
    a[0] = pgas.my_pe()
compiled("calls_my_pe", calls_my_pe, SIGNATURE)

@cuda.jit(cache=True)
def calls_ptr(a, pe):
    pgas.ptr(a, pe)[0] = 1
compiled("calls_ptr", calls_ptr, SIGNATURE)

@cuda.jit(cache=True)
def calls_put_block(a, pe):
    pgas.put_block(a, a, pe)
compiled("calls_put_block", calls_put_block, SIGNATURE)

@cuda.jit
def uncached(a, pe):
    pgas.p(a, 0, 1.0, pe)
compiled("uncached", uncached, SIGNATURE)
print(json.dumps([found, sorted(os.path.basename(path).split(".")[1].split("-")[0] for path in kept_kernels() if path.endswith(".nbc"))]))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    return python(tmp_path_factory.mktemp("refusals"), REFUSALS)


@pytest.mark.parametrize("kernel", ["calls_p", "calls_inner", "calls_inner_too", "calls_my_pe", "calls_ptr", "calls_put_block"])
def test_numbas_cache_is_refused_by_name(kernel, refusals):
    text = refusals[0][kernel]
    assert text is not None, "the kernel was put into Numba's cache"
    assert kernel in text
    assert "calls pgas functions and cannot be kept in Numba's cache" in text
    assert "use @pgas.jit (it has a cache of its own) instead of @cuda.jit(cache=True)" in text


def test_other_kernels_are_not_refused(refusals):
    assert refusals[0]["plain"] is None
    assert refusals[0]["uncached"] is None
    assert refusals[1] == ["plain"]
