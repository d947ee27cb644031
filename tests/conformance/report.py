"""What runs of the suite have shown, bullet by bullet: collected in a run, merged in a JSON file, printed as a table.

A bullet has failed in a run if one of its tests has; else passed, if one has; else it was refused, in the library's words, or skipped.
``python -m conformance.report FILE`` prints the file; its exit status is 1 if something failed or a bullet has neither test nor reason.
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

#: Worst first.
OUTCOMES = ("failed", "passed", "refused", "skipped")
SYMBOLS = {"failed": "FAIL", "passed": "pass", "refused": "refused", "skipped": "-"}

#: What a test says first when it skips because the library refuses what it asks for.
REFUSED = "refused: "

#: Variables that are in no title: the transport, which is there already, and those of the place that a run had on its machine.
_UNTITLED = ("PGAS_TRANSPORT", "PGAS_SYMMETRIC_SIZE", "PGAS_SOFTHCA_DEVICE", "PGAS_SOFTHCA_SMS")

_FORMAT = 1


class Collector:
    """The outcomes of one run's tests."""

    def __init__(self):
        self._tests = {}
        self._bullets = {}

    def expect(self, nodeid, bullets):
        """A test was found, and answers these (chapter, bullet)."""
        self._bullets[nodeid] = bullets

    def add(self, report):
        """Set-up, call and tear-down of a test; the worst counts, and a test that another PE saw fail has failed."""
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
        """This run as the file keeps it."""
        tests = [
            {"id": nodeid, "bullets": self._bullets[nodeid], "outcome": outcome, "reason": reason, "seconds": round(seconds, 3)}
            for nodeid, (seconds, outcome, reason) in self._tests.items()
            if self._bullets.get(nodeid) and outcome is not None
        ]
        return {"about": about, "variables": variables, "date": time.strftime("%Y-%m-%d %H:%M:%S"), "tests": tests}


def append(path, run):
    """Put a run into a file beside those that are there; return all. Runs at the same time wait for each other."""
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
    """A run in a few words: what carried it, how many PEs, and what was set besides."""
    about = run["about"]
    engine = f"/{about['engine'].split()[0]}" if about.get("engine") else ""
    words = [f"{about['transport']}{engine} {about['npes']} PE"]
    words += [f"{name.removeprefix('PGAS_')}={value}" for name, value in sorted(run["variables"].items()) if name not in _UNTITLED]
    return " ".join(words)


def columns(runs):
    """Title -> outcomes by (chapter, bullet) -> (outcome, reasons, number of tests), runs with one title taken together.

    Of a test that was run again the last time counts in which it was not skipped: it may want more memory than most runs have.
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
    """Title -> test by its id, as it came out in the run that counts."""
    tests = {}
    for run in runs:
        of_title = tests.setdefault(title(run), {})
        for test in run["tests"]:
            if test["outcome"] != "skipped" or of_title.get(test["id"], test)["outcome"] == "skipped":
                of_title[test["id"]] = test
    return tests


def unanswered(runs):
    """Bullets that no test of any run answers, and no reason is known for."""
    answered = {tuple(b) for run in runs for test in run["tests"] for b in test["bullets"]}
    every = [(chapter, bullet) for chapter, (_, bullets) in CHAPTERS.items() for bullet in bullets]
    return [b for b in every if b not in answered and why_untested(*b) is None]


def show(runs, file=None):
    """Print a table: a row a bullet, a column a kind of run, under it why something was refused, skipped or has failed."""
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
    for chapter, (name, bullets) in CHAPTERS.items():
        rows = {bullet: [column.get((chapter, bullet)) for column in found.values()] for bullet in bullets}
        if not any(any(cells) for cells in rows.values()):
            notes.append(f"{chapter}: not tested: {why_untested(chapter, '') or 'not in these runs'}")
            continue
        table.add_row(f"[bold]{chapter}. {name}[/bold]")
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
    """One line a reason, with the numbers of the columns it is of."""
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
    """Print the file that is named."""
    path = Path(sys.argv[1])
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    show(runs)
    failed = [t["id"] for of_title in _latest(runs).values() for t in of_title.values() if t["outcome"] == "failed"]
    for text in (f"failed: {len(failed)} tests" if failed else "", *(f"neither test nor reason: {c}, {b}" for c, b in unanswered(runs))):
        if text:
            print(text, file=sys.stderr)
    return 1 if failed or unanswered(runs) else 0


def variables():
    """What this run sets of the library's variables."""
    return {name: value for name, value in os.environ.items() if name.startswith("PGAS_")}


if __name__ == "__main__":
    sys.exit(main())
