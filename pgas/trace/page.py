"""The timeline and the traffic as one page for a browser, which loads nothing from elsewhere (page.html)."""

import json
from pathlib import Path
from typing import TextIO

from pgas.trace import chrome, matrix
from pgas.trace.reading import Trace

_DATA = "/*DATA*/"


def write(trace: Trace, lines: list[str], file: TextIO) -> None:
    """Write the page of a trace. lines: its summary."""
    traffic = matrix.of_trace(trace)
    families = {"all": matrix.moved(traffic), **traffic}
    data = {
        **chrome.render(trace),
        "title": f"pgas timeline: {trace.pes[0].job['n_pes']} PEs, {trace.pes[0].job['transport']}",
        "lines": lines,
        "matrix": {family: [[*pair, *cell] for pair, cell in cells.items()] for family, cells in families.items()},
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # So that no name ends the script element.
    before, after = Path(__file__).with_name("page.html").read_text(encoding="utf-8").split(_DATA)
    file.write(before + text + after)
