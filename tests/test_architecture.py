"""The shape of the code: layers, links, names, sizes, the public API, the declared variables. Read from the sources with ast."""

import ast
import inspect
import pydoc
import re
import subprocess
import symtable
import sys
import types
from functools import cache
from pathlib import Path

import pytest

import pgas
from pgas.base import config

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("kernels", "transports", "perftests")

#: Folders are layers, lowest first. A folder imports those before it. One that is not listed belongs to the one that it lies in.
FOLDERS = (
    "pgas/base", "transports/mlx5", "pgas/native", "pgas/sim",
    "kernels/compiler", "kernels", "kernels/paths", "kernels/ops", "kernels/collectives",
    "transports/memory", "transports/hostloop", "transports", "transports/softhca",
    "pgas/job/bootstrap", "pgas/job/paths", "pgas/job/memory", "pgas/job/health", "pgas/job",
    "pgas/api", "pgas/nvshmem", "pgas/doctor", "pgas/trace", "pgas/check", "pgas", "perftests",
)  # fmt: skip

#: Modules of functions that kernels call.
DEVICE_MODULES = {
    f"pgas.api.{name}" for name in ("amo", "collective", "lock", "query", "reduction", "rma", "signal", "sync", "team", "wait")
}

PUBLIC = """
    cuda BootstrapError CompletionError DeadlockError DeviceError EQ GE GT HeapError LE LT NE PgasError PgasWarning SIGNAL_ADD SIGNAL_SET
    SIMULATOR SymmetricArray TransportError __version__ allgather_object array barrier_all barrier_all_block
    barrier_all_warp broadcast_object empty fence finalize free full g get get_block get_warp info init jit launch my_pe n_pes p ptr
    flush get_nbi get_nbi_block get_nbi_warp iget iget_block iget_warp iput iput_block iput_warp quiet_pe
    give_smem give_smem_block give_smem_warp
    put put_block put_nbi put_nbi_block put_nbi_warp put_signal put_signal_block put_signal_nbi put_signal_nbi_block
    put_signal_nbi_warp put_signal_warp put_warp quiet signal_op signal_wait_until sync_all sync_all_block sync_all_warp synchronize
    wait_until zeros ones
    signal_fetch test test_all test_all_vector test_any test_any_vector test_some test_some_vector wait_until_all wait_until_all_vector
    wait_until_any wait_until_any_vector wait_until_some wait_until_some_vector
    atomic_add atomic_and atomic_compare_swap atomic_fetch atomic_fetch_add atomic_fetch_and atomic_fetch_inc atomic_fetch_or
    atomic_fetch_xor atomic_inc atomic_or atomic_set atomic_swap atomic_xor
    set_lock test_lock clear_lock atomic_min atomic_max atomic_fetch_min atomic_fetch_max
    register reset unique_id unregister empty_like full_like zeros_like
    TEAM_NODE TEAM_SAME_LOCAL TEAM_SHARED TEAM_WORLD Team team_create team_destroy team_my_pe team_n_pes team_split_2d team_split_strided
    team_translate_pe
    AND MAX MIN OR PROD SUM XOR alltoall alltoall_block alltoall_warp alltoallv alltoallv_block alltoallv_warp barrier barrier_block
    barrier_warp broadcast broadcast_block broadcast_warp collect collect_block collect_warp exscan exscan_block exscan_warp fcollect
    fcollect_block fcollect_warp inscan inscan_block inscan_warp maxloc maxloc_block maxloc_warp minloc minloc_block minloc_warp reduce
    reduce_block reduce_warp reducescatter reducescatter_block reducescatter_warp team_sync team_sync_block team_sync_warp
""".split()  # noqa: SIM905


def sources():
    """Return module name -> path of every module of pgas."""
    found = {}
    for top in ("pgas", *LINKS):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts if top == "pgas" else ("pgas", *parts)).removesuffix(".__init__")] = path
    return found


SOURCES = sources()
KERNELS = [module for module in SOURCES if module.startswith("pgas.kernels.")]


@cache
def tree(module):
    return ast.parse(SOURCES[module].read_text())


def imports(module):
    """Yield (line, name) of every module of pgas that this one imports, also in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] == "pgas")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pgas":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in SOURCES else node.module


def folder(module):
    return SOURCES[module].relative_to(ROOT).parent.as_posix()


def level(module):
    path = folder(module)
    while path not in FOLDERS:
        path = path.rpartition("/")[0]
    return FOLDERS.index(path)


def test_folders_are_layers():
    assert len(FOLDERS) <= 25
    upwards = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {imported}, which is above it"
        for module in SOURCES
        for line, imported in imports(module)
        if imported in SOURCES and level(imported) > level(module)
    ]
    assert upwards == []


def test_the_product_stands_without_the_software_card():
    """Only one module imports that package, and only to start or open a card."""
    users = {module for module in SOURCES for _, name in imports(module) if name.startswith("pgas.transports.softhca")}
    assert {module for module in users if not module.startswith("pgas.transports.softhca")} == {"pgas.job.paths.card"}


def test_no_two_folders_import_each_other():
    edges = {}
    for module in SOURCES:
        for line, imported in imports(module):
            if imported in SOURCES and folder(imported) != folder(module):
                edges.setdefault((folder(module), folder(imported)), f"{SOURCES[module].relative_to(ROOT)}:{line} imports {imported}")
    circles = [(edge, edges[back]) for (a, b), edge in edges.items() if (back := (b, a)) in edges and a < b]
    assert circles == []


def test_no_cycles():
    """Modules that import each other outside functions can be loaded in one order only."""
    below = {}
    for module in SOURCES:
        top = {n.lineno for n in tree(module).body} | {
            inner.lineno for n in tree(module).body if isinstance(n, ast.If) for inner in [*n.body, *n.orelse]
        }
        below[module] = {name for line, name in imports(module) if line in top and name in SOURCES}
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for name in below[module]:
                visit(name, [*path, module])
            done.add(module)

    for module in SOURCES:
        visit(module, [])


LOWEST = ["errors", "text", "liveness", "ancestors", "launcher", "credentials", "version"]


@pytest.mark.parametrize("layer", LOWEST)
def test_lowest_layers_need_only_the_standard_library(layer):
    """And each other, in this order."""
    lower = {f"pgas.base.{name}" for name in LOWEST[: LOWEST.index(layer)]} | {"pgas.base"}
    names = {
        name.split(".")[0]
        for node in ast.walk(tree(f"pgas.base.{layer}"))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
        if name not in lower
    }
    assert names <= sys.stdlib_module_names


def test_topology_and_config_decide_without_cuda():
    """Modules that tests feed with records import neither Numba nor the driver."""
    for module in (
        "base.errors",
        "base.config",
        "base.backend",
        "base.liveness",
        "job.paths.topology",
        "job.memory.heap",
        "transports.memory.fds",
    ):
        text = SOURCES[f"pgas.{module}"].read_text()
        top = [ast.unparse(n) for n in ast.parse(text).body if isinstance(n, (ast.Import, ast.ImportFrom))]
        assert not [line for line in top if re.search(r"\b(numba|cuda|mpi4py)\b", line)], module


#: The folders that may import the compiler of device code (numba.cuda), Numba's compiler for the CPU, and their code generator (llvmlite).
IMPORTERS = {
    "numba.cuda": ("kernels/compiler", "pgas/native", "pgas/sim"),
    "llvmlite": ("kernels/compiler", "pgas/native", "pgas/sim", "transports/hostloop"),
    "numba": ("kernels/compiler", "pgas/native", "pgas/sim", "transports/hostloop"),
}


def imported_names(module):
    """Yield (line, dotted name) of everything that a module imports, also in functions and by import_module() of a literal."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            yield node.lineno, node.args[0].value


def test_the_compiler_is_known_in_one_folder():
    """Perf tests are programs that use pgas, and may say numba.cuda."""
    strangers = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {name}"
        for module in SOURCES
        for line, name in imported_names(module)
        for package, folders in IMPORTERS.items()
        if f"{name}.".startswith(f"{package}.") and not folder(module).startswith("perftests") and folder(module) not in folders
    ]
    assert strangers == []


def test_private_parts_of_numba_cuda_are_used_in_its_modules():
    """The other modules of the folder use it through cuda and types of interface.Backend."""
    knowing = {m for m in SOURCES if folder(m) == "kernels/compiler" for _, name in imported_names(m) if name.startswith("numba.cuda")}
    assert knowing == {f"pgas.kernels.compiler.numba_cuda{part}" for part in ("", "_bodies", "_values")}


def test_few_places_choose_between_gpu_and_simulator():
    """The others use what differs through Backend (kernels/compiler/interface.py) and Platform (pgas/job/paths/platform.py)."""
    product = [path for module, path in SOURCES.items() if not module.startswith("pgas.perftests")]
    assert sum(len(re.findall(r"\bSIMULATOR\b", path.read_text())) for path in product) <= 25


def test_no_relative_imports():
    for module in SOURCES:
        assert [n.lineno for n in ast.walk(tree(module)) if isinstance(n, ast.ImportFrom) and n.level] == [], module


def test_linked_folders_are_imported_as_pgas():
    for module in SOURCES:
        names = {
            name.split(".")[0]
            for node in ast.walk(tree(module))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        assert names.isdisjoint(LINKS), module


@pytest.mark.parametrize("link", LINKS)
def test_links(link):
    path = ROOT / "pgas" / link
    assert path.is_symlink()
    assert str(path.readlink()) == f"../{link}"
    assert path.resolve() == ROOT / link
    assert (ROOT / link / "__init__.py").is_file()


@pytest.mark.parametrize("link", LINKS)
def test_git_keeps_the_links_as_links(link):
    listed = subprocess.run(["git", "ls-files", "-s", f"pgas/{link}"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not in git")
    assert listed.startswith("120000 ")


def test_no_other_folder_of_code():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    outside = [path for path in listed if path.split("/")[0] not in ("pgas", "kernels", "transports", "perftests", "tests", ".ci")]
    assert [path for path in outside if not path.startswith(("docs/gallery/", "docs/site/"))] == []


def test_modules_are_nouns_of_what_they_own():
    for module in SOURCES:
        words = set(re.split(r"[._]", module))
        assert words.isdisjoint({"utils", "util", "common", "helper", "helpers", "misc", "manager", "tools", "stuff"}), module


def test_no_function_of_kernels_over_80_lines():
    found = [
        f"{SOURCES[module].relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for module in KERNELS
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 80
    ]
    assert found == []


#: Functions of kernels with more than 9 parameters, and why.
MANY_PARAMETERS = {"_store_record": "an address and the words of a record: one primitive, whose stores are in one order"}


def test_no_function_of_kernels_takes_more_than_9_parameters():
    found = []
    for module in KERNELS:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef):
                name, count = node.name, len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            elif isinstance(node, ast.Call):
                name, count = ast.unparse(node.func), len(node.args) + len(node.keywords)
            else:
                continue
            if count > 9 and name not in MANY_PARAMETERS:
                found.append(f"{SOURCES[module].relative_to(ROOT)}:{node.lineno} {name}: {count}")
    assert found == []


def test_paths_are_modules_of_one_shape():
    """p2p, ibgda and ibrc define the names of transport.Path in its order, and no other public names, except p2p's copies."""
    shape = [
        node.name if isinstance(node, ast.FunctionDef) else node.target.id
        for top in tree("pgas.kernels.paths.transport").body
        if isinstance(top, ast.ClassDef) and top.name == "Path"
        for node in top.body
        if isinstance(node, (ast.FunctionDef, ast.AnnAssign))
    ]
    for path in ("p2p", "ibgda", "ibrc"):
        defined = []
        for node in tree(f"pgas.kernels.paths.{path}").body:
            if isinstance(node, ast.FunctionDef):
                defined.append(node.name)
            elif isinstance(node, ast.Assign):
                defined += [target.id for target in node.targets if isinstance(target, ast.Name)]
        assert [name for name in defined if not name.startswith("_") and name not in ("copy", "copy_apart")] == shape, path


def test_modules_have_docstrings():
    for module in SOURCES:
        assert ast.get_docstring(tree(module)), module


def test_no_assertions_on_input():
    """python -O removes assertions, so they may only state what pgas itself guarantees, in these modules."""
    allowed = {"pgas.api.jit": 1, "pgas.job.health.device_state": 1, "pgas.kernels.compiler.cpu": 1}
    for module in SOURCES:
        found = [n.lineno for n in ast.walk(tree(module)) if isinstance(n, ast.Assert)]
        assert len(found) <= allowed.get(module, 0), (module, found)


# --------------------------------------------------------------------------------------------------------- public API


def test_no_comprehension_takes_the_name_of_a_function_that_a_lambda_beside_it_calls():
    """Python 3.12 and 3.13 raise a NameError in the lambda (def f(): ...; def g(): lambda: f(); [f for f in ...]), 3.11 does not."""

    def found(table, module):
        for inner in table.get_children():
            if inner.get_name() in ("listcomp", "setcomp", "dictcomp") and table.get_type() == "function":
                own = {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_assigned()}
                for symbol in table.get_symbols():
                    if symbol.is_free() and symbol.get_name() in own:
                        yield f"{module}:{inner.get_lineno()} {symbol.get_name()}"
            yield from found(inner, module)

    assert [
        name for module, path in SOURCES.items() for name in found(symtable.symtable(path.read_text(), str(path), "exec"), module)
    ] == []


def test_public_api():
    assert sorted(pgas.__all__) == sorted(PUBLIC)
    assert len(pgas.__all__) == len(set(pgas.__all__))


def test_everything_public_exists():
    for name in pgas.__all__:
        assert hasattr(pgas, name), name


def test_nothing_else_looks_public():
    others = {n for n, v in vars(pgas).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)}
    assert others == {n for n in pgas.__all__ if not n.startswith("_")} - {"cuda"}  # which is a module


def test_public_docstrings():
    """One imperative line that ends in a full stop; a section Args describes every argument."""
    for name in [n for n in PUBLIC if callable(getattr(pgas, n, None))]:
        text = inspect.getdoc(getattr(pgas, name))
        assert text, name
        assert text.splitlines()[0].rstrip().endswith((".", ":")) or "\n\n" not in text, name
        if inspect.isfunction(getattr(pgas, name)) and "Args:" in text:
            for parameter in inspect.signature(getattr(pgas, name)).parameters:
                assert re.search(rf"^\s+(\w+, )*{parameter}(, \w+)*:", text, re.M), f"{name}: {parameter} is not described"


def test_device_functions_show_their_arguments():
    number = "int | numpy.integer"
    shown = f"(dest: Any, source: Any, pe: {number}, nelems: {number} | None = None, qp: {number} = 0, smem: Any = None"
    assert str(inspect.signature(pgas.put_block)) == f"{shown}) -> None"
    assert f"put_block{shown}) -> None" in pydoc.plain(pydoc.render_doc(pgas.put_block))
    assert str(inspect.signature(pgas.put)) == f"{shown}, *, stream: Any = None) -> None"


def test_a_device_function_names_its_code():
    """The decorator above its docstring names the function of kernels/ops or kernels/collectives that returns its body."""
    modules = [m for m in SOURCES if folder(m) == "pgas/api"]
    stubs = {n.name: (m, n.decorator_list[0]) for m in modules for n in tree(m).body if isinstance(n, ast.FunctionDef) and n.decorator_list}
    for name in [n for n in PUBLIC if inspect.isfunction(value := getattr(pgas, n)) and value.__module__ in DEVICE_MODULES]:
        module, decorator = stubs[name]
        if ast.unparse(decorator) == "host_only":
            continue
        assert decorator.func.id in ("device_function", "array_function"), name
        code = decorator.args[0].func if isinstance(decorator.args[0], ast.Call) else decorator.args[0]
        ops = next(
            imported for _, imported in imports(module) if imported.endswith((f"ops.{code.value.id}", f"collectives.{code.value.id}"))
        )
        (made,) = [n for n in tree(ops).body if isinstance(n, ast.FunctionDef) and n.name == code.attr]
        assert "yping function of" in ast.get_docstring(made), f"pgas.{name}: {ops}.{code.attr}"


def test_the_reading_path_is_there():
    """The functions that CONTRIBUTING names are in their files, and its line counts are approximately right."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rows) > len(FOLDERS)
    for path, lines, text in rows:
        source = (ROOT / path).read_text()
        assert abs(len(source.splitlines()) - int(lines)) <= max(20, int(lines) // 4), path
        for name in re.findall(r"`(\w+)`", text):
            assert re.search(rf"^\s*(def|class) {name}\b|^{name} = ", source, re.MULTILINE), f"{path}: {name}"


def test_public_constants_are_described_where_they_are_made():
    for name in [n for n in PUBLIC if not callable(getattr(pgas, n, None)) and n != "__version__"]:
        texts = "\n".join(
            SOURCES[f"pgas.{m}"].read_text()
            for m in ("api.sync", "api.signal", "api.reduction", "api.team", "base.backend", "kernels.compiler")
        )
        line = next(i for i, t in enumerate(texts.splitlines()) if re.match(rf"([A-Z_]+, )*{name}\b[^=]*=", t))
        assert texts.splitlines()[line - 1].startswith("#:"), name


#: Names of several classes, each with the reason.
SHARED_NAMES = {
    "SymmetricArray": "one for GPUs, one for the simulator, of which a process has one",
    "Status": "the PRM's, of a command's output; doctor's column status",
}


def test_class_names_are_unique():
    """One name, one thing: a name in a message, a review, or a search must have one meaning. Private classes may share a name."""
    places = {}
    for module in SOURCES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{SOURCES[module].relative_to(ROOT)}:{node.lineno}")
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() - shared.keys() == set()


def test_all_names_exist():
    """All names in __all__ of a module are defined."""
    for name in [n for n in SOURCES if folder(n) not in ("pgas", "perftests") and n != "pgas.api"]:  # whose names are imported by *
        exported = [n for n in tree(name).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
        defined = set()
        for node in ast.walk(tree(name)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                defined.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                defined |= {(a.asname or a.name).split(".")[0] for a in node.names}
        for node in exported:
            assert set(ast.literal_eval(node.value)) <= defined, name


# ---------------------------------------------------------------------------------------------------------- variables


def test_every_variable_that_is_mentioned_is_declared():
    mentioned = {}
    for path in [*SOURCES.values(), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(r"\bPGAS_[A-Z][A-Z_]*[A-Z]\b", path.read_text()):
            mentioned.setdefault(name, path.name)
    assert mentioned.keys() - config.VARIABLES.keys() == set(), mentioned


def test_only_config_reads_them():
    for module, path in SOURCES.items():
        if module != "pgas.base.config":
            assert not re.search(r"(environ\.get|getenv)\(\s*[\"']PGAS_", path.read_text()), module


def test_the_cache_key_covers_what_kernels_are_made_of():
    """A change in any module with device code or its constants must change the key, so that old code is not found."""
    covered = {path.resolve() for path in sys.modules["pgas.api.jit"]._sources()}
    modules = [module for module in SOURCES if module.startswith("pgas.kernels.")]
    used = {
        imported
        for module in modules
        for _, imported in imports(module)
        if not imported.startswith(("pgas.sim", "pgas.native", "pgas.base"))
    }
    assert "pgas.transports.mlx5.wqe" in used
    assert [name for name in used if name in SOURCES and SOURCES[name].resolve() not in covered] == []
