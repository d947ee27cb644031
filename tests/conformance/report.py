"""The results of the suite by bullets of the checklist: collected in a run, merged in a JSON file, printed as a table.

A bullet has failed in a run if one of its tests failed, passed if one passed and none failed; otherwise it was refused, with the library's
message, or skipped. ``python -m conformance.report FILE`` prints the file. Its exit status is 1 if something failed, or if a bullet has
neither a test nor a reason.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from conformance.checklist import CHAPTERS, why_untested

#: Outcomes, worst first.
OUTCOMES = ("failed", "passed", "refused", "skipped")
SYMBOLS = {"failed": "FAIL", "passed": "pass", "refused": "refused", "skipped": "-"}

#: Start of a skip's reason if the library refuses what the test needs.
REFUSED = "refused: "

#: Variables that are not shown in titles: the transport is there already, the others concern the machine.
_UNTITLED = ("PGAS_TRANSPORT", "PGAS_SYMMETRIC_SIZE", "PGAS_SOFTHCA_DEVICE", "PGAS_SOFTHCA_SMS")
#: Variables that are not recorded: they have the secrets of jobs.
_SECRET = ("PGAS_LAUNCHED", "PGAS_SECRET", "PGAS_STARTED_BY")

_FORMAT = 1


class Collector:
    def __init__(self):
        self._tests = {}
        self._bullets = {}

    def expect(self, nodeid, bullets):
        """Add a collected test and its (chapter, bullet) pairs."""
        self._bullets[nodeid] = bullets

    def add(self, report):
        """Add a phase of a test (setup, call, teardown). The worst phase counts; a failure on another PE is a failure."""
        seconds, outcome, reason = self._tests.get(report.nodeid, (0.0, None, ""))
        elsewhere = dict(report.user_properties).get("failed on")
        if report.failed or elsewhere:
            outcome, reason = "failed", reason or (str(report.longrepr).splitlines()[-1] if report.failed else f"on PEs {elsewhere}")
        elif report.skipped and outcome is None:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = text.removeprefix("Skipped: ")
            outcome = "refused" if reason.startswith(REFUSED) else "skipped"
            reason = reason.removeprefix(REFUSED)
        elif report.when == "call" and outcome is None:
            outcome = "passed"
        self._tests[report.nodeid] = (seconds + report.duration, outcome, reason)

    def run(self, about, variables):
        tests = [
            {"id": nodeid, "bullets": self._bullets[nodeid], "outcome": outcome, "reason": reason, "seconds": round(seconds, 3)}
            for nodeid, (seconds, outcome, reason) in self._tests.items()
            if self._bullets.get(nodeid) and outcome is not None
        ]
        return {"about": about, "variables": variables, "date": time.strftime("%Y-%m-%d %H:%M:%S"), "tests": tests}


def append(path, run):
    """Append a run to a file; return all runs in it. The file is locked meanwhile."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        runs = (json.loads(text)["runs"] if text else []) + [run]
        file.truncate(0)
        json.dump({"format": _FORMAT, "runs": runs}, file, indent=1)
    return runs


def title(run):
    """Return a short title of a run: transport, number of PEs, and variables that were set."""
    about = run["about"]
    engine = f"/{about['engine'].split()[0]}" if about.get("engine") else ""
    words = [f"{about['transport']}{engine} {about['npes']} PE"]
    words += [f"{name.removeprefix('PGAS_')}={value}" for name, value in sorted(run["variables"].items()) if name not in _UNTITLED]
    return " ".join(words)


def columns(runs):
    """Return, by title, for each (chapter, bullet) its outcome, reasons and number of tests. Runs with the same title are merged.

    If a test ran several times, the last run counts that did not skip it, as some tests need more memory than most runs have.
    """
    found = {}
    for name, of_title in _latest(runs).items():
        column = found.setdefault(name, {})
        for test in of_title.values():
            for bullet in map(tuple, test["bullets"]):
                outcome, reasons, counts = column.get(bullet, ("skipped", [], {}))
                outcome = min(outcome, test["outcome"], key=OUTCOMES.index)
                if test["reason"] and test["reason"] not in reasons:
                    reasons = [*reasons, test["reason"]]
                column[bullet] = outcome, reasons, {**counts, test["outcome"]: counts.get(test["outcome"], 0) + 1}
    return found


def _latest(runs):
    """Return, by title and test id, the result of a test in the run that counts."""
    tests = {}
    for run in runs:
        of_title = tests.setdefault(title(run), {})
        for test in run["tests"]:
            if test["outcome"] != "skipped" or of_title.get(test["id"], test)["outcome"] == "skipped":
                of_title[test["id"]] = test
    return tests


def unanswered(runs):
    """Return the bullets without a test in any run and without a reason."""
    answered = {tuple(b) for run in runs for test in run["tests"] for b in test["bullets"]}
    every = [(chapter, bullet) for chapter, bullets in CHAPTERS.items() for bullet in bullets]
    return [b for b in every if b not in answered and why_untested(*b) is None]


def show(runs, file=None):
    """Print a table with a row for each bullet and a column for each kind of run, then the reasons for refusals, skips and failures."""
    console = Console(file=file, width=None if (file or sys.stdout).isatty() else 200)
    found = columns(runs)
    about = runs[-1]["about"]
    versions = about.get("versions", {})
    engines = sorted({engine for run in runs if len((engine := run["about"].get("engine") or "").split()) > 1})  # with its code's hash
    where = ", ".join([about.get("machine", "this machine"), *(f"engine {engine}" for engine in engines)])
    console.print(f"Conformance of {about['library']} {versions.get(about['library'], '')} on {where}", highlight=False)
    for i, name in enumerate(found):
        console.print(f"  {i + 1}: {name}")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for i in range(len(found)):
        table.add_column(str(i + 1), justify="right")
    notes = []
    for chapter, bullets in CHAPTERS.items():
        rows = {bullet: [column.get((chapter, bullet)) for column in found.values()] for bullet in bullets}
        if not any(any(cells) for cells in rows.values()):
            notes.append(f"{chapter}: not tested: not in these runs")
            continue
        table.add_row(f"[bold]{chapter}[/bold]")
        for bullet, cells in rows.items():
            table.add_row(f"  {bullet}", *(_cell(cell) for cell in cells))
            notes += _notes(f"{chapter}, {bullet}", cells, why_untested(chapter, bullet))
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def _cell(cell):
    if cell is None:
        return ""
    outcome, _, counts = cell
    return f"{SYMBOLS[outcome]} {counts[outcome]}" if outcome in ("failed", "passed") else SYMBOLS[outcome]


def _notes(where, cells, untested):
    """Return a line for each reason, with the numbers of its columns."""
    if not any(cells):
        yield f"{where}: not tested: {untested or 'not in these runs'}"
    by_reason = {}
    for i, cell in enumerate(cells):
        if cell and cell[0] != "passed":
            for reason in cell[1]:
                by_reason.setdefault((cell[0], reason), []).append(str(i + 1))
    for (outcome, reason), numbers in by_reason.items():
        yield f"{where}: {outcome} in {', '.join(numbers)}: {reason}"


def main():
    path = Path(sys.argv[1])
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    show(runs)
    failed = [t["id"] for of_title in _latest(runs).values() for t in of_title.values() if t["outcome"] == "failed"]
    for text in (f"failed: {len(failed)} tests" if failed else "", *(f"neither test nor reason: {c}, {b}" for c, b in unanswered(runs))):
        if text:
            print(text, file=sys.stderr)
    return 1 if failed or unanswered(runs) else 0


def variables():
    """Return the library's variables that are set in this run, but for secrets."""
    return {name: value for name, value in os.environ.items() if name.startswith("PGAS_") and name not in _SECRET}


if __name__ == "__main__":
    sys.exit(main())
