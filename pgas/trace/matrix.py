"""Traffic matrices: operations and bytes by family, PE, and peer, from the CSV files of PGAS_TRACE=traffic or from a timeline."""

import csv
import glob
import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pgas.base.errors import PgasError
from pgas.kernels.traffic import MOVING, family_of
from pgas.trace.reading import Trace

#: By family, the number of operations and of bytes from one PE to another.
Cells = dict[tuple[int, int], list[int]]
Matrix = dict[str, Cells]

_COLUMNS = {"pe", "peer", "family", "operations", "bytes"}


def csv_files(names: Iterable[str]) -> list[str]:
    """Return the CSV files among what a user names: files, or the FILE of PGAS_TRACE=traffic:FILE."""
    found: list[str] = []
    for name in names:
        of_pes = [path for path in glob.glob(f"{glob.escape(name)}.*.csv") if path[len(name) + 1 : -4].isdigit()]
        found += [name] if name.endswith(".csv") else sorted(of_pes, key=lambda path: (len(path), path))
    return list(dict.fromkeys(found))


def of_csv(paths: Iterable[str]) -> Matrix:
    """Return the traffic in CSV files. Raises PgasError if one is not such a file."""
    matrix: Matrix = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for path in paths:
        try:
            with open(path, newline="") as file:
                rows = csv.DictReader(file)
                if not _COLUMNS.issubset(rows.fieldnames or ()):
                    raise PgasError(f"{path} is not a file of PGAS_TRACE=traffic")
                for row in rows:
                    _count(matrix, row["family"], int(row["pe"]), int(row["peer"]), int(row["operations"]), int(row["bytes"]))
        except OSError as error:
            raise PgasError(f"cannot read {path}: {error.strerror}") from error
    return matrix


def of_trace(trace: Trace) -> Matrix:
    """Return the traffic of the calls in a timeline, without collectives."""
    matrix: Matrix = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for event in trace.events():
        if event.in_kernel and event.peer >= 0 and (family := family_of(event.name)) is not None:
            _count(matrix, family, event.pe, event.peer, 1, event.nbytes)
    return matrix


def _count(matrix: Matrix, family: str, pe: int, peer: int, operations: int, nbytes: int) -> None:
    cell = matrix[family][pe, peer]
    cell[0] += operations
    cell[1] += nbytes


def moved(matrix: Matrix) -> Cells:
    """Return the bytes and operations of all families that move data to or from a peer."""
    total: Cells = defaultdict(lambda: [0, 0])
    for family, cells in matrix.items():
        if family in MOVING:
            for pair, (operations, nbytes) in cells.items():
                total[pair][0] += operations
                total[pair][1] += nbytes
    return total


def plot(matrix: Matrix, path: str) -> None:
    """Draw a heat map of the bytes of all pairs of PEs, and one for each family. Raises PgasError if there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PgasError("--plot: pictures need matplotlib: pip install 'pgas[plot]'")
    import matplotlib  # Imported here, because it takes half a second to load and may not be installed.

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panels: list[tuple[str, Cells, int, str]] = [("all", moved(matrix), 1, "B")]
    panels += [(family, cells, 1, "B") for family, cells in matrix.items() if family in MOVING]
    panels += [(f"{family}s", matrix[family], 0, "") for family in ("WQE", "doorbell") if family in matrix]
    n_pes = 1 + max((max(pair) for cells in matrix.values() for pair in cells), default=0)
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.4 * len(panels), 3.4), squeeze=False, layout="constrained")
    for axis, (name, cells, which, unit) in zip(axes[0], panels, strict=True):
        _draw(axis, _table(cells, which, n_pes), name, EngFormatter(unit, places=1))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


#: Maximum number of PEs for which cells have numbers.
_MOST_NUMBERS = 8


def _table(cells: Cells, which: int, n_pes: int) -> list[list[float]]:
    return [[cells[pe, peer][which] if (pe, peer) in cells else float("nan") for peer in range(n_pes)] for pe in range(n_pes)]


def _draw(axis: Any, table: Sequence[Sequence[float]], title: str, formatter: Any) -> None:
    image = axis.imshow(table, cmap="viridis", vmin=0)
    axis.figure.colorbar(image, ax=axis, format=formatter, shrink=0.8)
    axis.set(title=title, xlabel="peer", ylabel="PE")
    if len(table) <= _MOST_NUMBERS:
        most = max((value for row in table for value in row if value == value), default=0)
        for pe, row in enumerate(table):
            for peer, value in enumerate(row):
                if value == value:  # It is not NaN.
                    color = "black" if value > most / 2 else "white"
                    axis.text(peer, pe, formatter(value), ha="center", va="center", color=color, fontsize=7)
