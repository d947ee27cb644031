"""Remove each fence, quiet, wait, and barrier of the documentation's programs in turn, and print what the order checker says.

    python tests/tools/without_order.py [patterns gallery/ep ...]

prints a table: page, program, line, operation, and the missing links that the checker names, or "not found". A person reads the rows that
are not found and says why: docs/order.md. All programs are in their right form.
"""

import ast
import contextlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from examples import STAND_INS, commands, programs  # noqa: E402

from pgas.check import log  # noqa: E402
from pgas.check.order import Order  # noqa: E402
from pgas.check.record import install  # noqa: E402
from pgas.perftests.harness.jobs import mpirun  # noqa: E402

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("getting-started", "memory-model", "patterns")]
PAGES += sorted((ROOT / "docs" / "gallery").glob("*.md"))

#: Operations that are removed where they are statements, without _warp and _block; sync: of a grid.
NAMES = re.compile(
    r"fence|quiet|quiet_pe|flush|(signal_)?wait_until(_\w+)?|barrier_all|barrier|sync_all|team_sync|synchronize|sync|syncthreads|syncwarp"
    r"|threadfence\w*"
)
SECONDS = 150


def removals(text):
    """Yield (line, operation, text without it); the other lines keep their numbers."""
    for node in ast.walk(ast.parse(text)):
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            name = call.func.attr.removesuffix("_warp").removesuffix("_block")
            if NAMES.fullmatch(name):
                lines = text.splitlines()
                first = lines[node.lineno - 1]
                last = lines[node.end_lineno - 1][node.end_col_offset :]
                removed = [first[: node.col_offset] + "pass" + last, *[""] * (node.end_lineno - node.lineno)]
                yield node.lineno, ast.unparse(call), "\n".join([*lines[: node.lineno - 1], *removed, *lines[node.end_lineno :]])


def right_form(page, name):
    """Return the command that runs a program: over p2p, with most arguments on pages whose arguments make a program right."""
    found = [c for c in commands(page) if c.arguments[0] == name and "PGAS_TRANSPORT" not in dict(c.environment)]
    return max(found, key=lambda c: len(c.arguments)) if page.stem == "memory-model" else found[0] if found else None


def perform(folder, name, arguments):
    """Run the forms of a program that have not begun, one after another in one job."""
    recorder = None
    for form in sorted(folder.iterdir(), key=lambda path: int(path.name)):
        if (form / "begun").exists():
            continue
        if recorder is None:
            recorder = install(form / "log")
        recorder.restart(form / "log")
        sys.argv = [str(form / name), *arguments]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                break
        finally:
            recorder.log.close()
        (form / "begun").touch()


def rows(command, text, folder, removed):
    """Yield (line, operation, missing links) for a command's program as it is, and for forms with something removed."""
    name, forms = command.arguments[0], [(0, "as it is", text), *removed]
    for i, (_, _, form) in enumerate(forms):
        (folder / str(i) / "log").mkdir(parents=True)
        (folder / str(i) / name).write_text(form)
    environment = {**os.environ, **dict(command.environment), **STAND_INS, "PGAS_TIMEOUT": "5"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), STAND_INS.get("PYTHONPATH"))))
    environment.pop("PGAS_SIM_WEAK", None)
    line = [*mpirun(command.npes), sys.executable, __file__, "--perform", folder, name, *command.arguments[1:]]
    for i in range(len(forms)):
        if not (folder / str(i) / "begun").exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(line, env=environment, capture_output=True, timeout=SECONDS)
            (folder / str(i) / "begun").touch()
    for i, (number, operation, _) in enumerate(forms):
        order, ended = Order(), ""
        try:
            order.follow(log.merged(folder / str(i) / "log"))
        except Exception as error:  # The log of a job that was killed.
            ended = f" (log ends: {type(error).__name__})"
        found = order.findings.all
        said = [f"{f.missing} ({f.first.line}, {f.second.line})" for f in found if str(folder) in f.first.file]
        yield number, operation, ("; ".join(sorted(set(said))) or "not found") + ended


def main(wanted):
    for page in PAGES:
        label = str(page.relative_to(ROOT / "docs").with_suffix(""))
        if wanted and not any(w in (label, f"{label}:{n}") for w in wanted for n in programs(page)):
            continue
        for name, text in programs(page).items():
            if any(w.startswith(f"{label}:") for w in wanted) and f"{label}:{name}" not in wanted:
                continue
            command = right_form(page, name)
            if command is None:
                continue
            folder = Path(tempfile.mkdtemp(prefix="pgas-without-"))
            for number, operation, said in rows(command, text, folder, removals(text)):
                print(f"| {label} | {name} | {number} | {operation} | {said} |", flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--perform"]:
        perform(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main(sys.argv[1:])
