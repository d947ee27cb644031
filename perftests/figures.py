"""``make figures``: measures put and p over ibrc and ibgda on this machine and draws what they reach.

    python -m pgas.perftests.figures

Two PEs run shmem_put_bw and shmem_p_bw, once for each point or curve. All rows and what ran where go into
perftests/baselines/figures-<machine>.json; the pictures put_bandwidth-<machine>.png and put_rate-<machine>.png beside
it are drawn from that file alone, again with ``--from``. Exit status 1 if a run failed: the pictures have what there is.

Where no GPU is spare, the PEs and the NIC's kernel share one under MPS. Without a GPU all shrinks and runs in the
simulator.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgas.perftests import findings, pictures, report
from pgas.perftests.findings import COALESCED_P, LIMITED_PUT, PUT, SCATTERED_P
from pgas.perftests.jobs import BASELINES, gpus, machine_name, mpirun, mps, run
from pgas.perftests.options import size_flag

__all__ = ["Measurement", "main", "measure", "plan"]

#: Gb/s of the limited link: a port of a ConnectX-6.
_LINK = "200"

#: Seconds after which a run is given up.
_LIMIT = 200


@dataclass(frozen=True)
class Measurement:
    """One run of a perf test.

    Attributes:
        curve: what it is a part of; names are findings.py's.
        transport: ibrc or ibgda.
        ctas: CTAs of the sending kernel.
        command: the perf test and its flags.
        environment: variables of this run.
    """

    curve: str
    transport: str
    ctas: int
    command: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class _Scale:
    """How much is measured. Sizes are those of one CTA: a message of a put, all messages of p."""

    threads: int
    put_ctas: Sequence[int]
    put_sizes: tuple[int, int]
    step: int
    p_ctas: Sequence[int]
    p_size: int
    put_iters: tuple[int, int]  #: timed and warm-up iterations: of puts so many that waiting for the last ones counts little
    p_iters: tuple[int, int]
    limited: bool  #: whether puts over a limited link are measured


_GPU = _Scale(1024, (1, 8, 64), (8, 1 << 20), 2, (1, 2, 4, 8, 16, 32, 64), 64 << 10, (1000, 50), (50, 10), True)
#: An interpreter fills no link.
_SIMULATOR = _Scale(32, (1, 2, 4), (8, 8 << 10), 4, (1, 2, 4), 1 << 10, (2, 1), (2, 1), False)


def plan(*, gpu: bool, p_ctas: Sequence[int] | None = None) -> list[Measurement]:
    """Return the runs of the figures, what says most first, on a GPU or in the simulator; p_ctas: CTAs that send p, if other than usual."""
    scale = _GPU if gpu else _SIMULATOR
    curves = ((SCATTERED_P, "ibgda"), (SCATTERED_P, "ibrc"), (COALESCED_P, "ibgda"))
    rates = [(curve, transport, ctas) for curve, transport in curves for ctas in p_ctas or scale.p_ctas]
    limited = [(LIMITED_PUT, transport, scale.put_ctas[-1]) for transport in ("ibgda", "ibrc") if scale.limited]
    puts = [(PUT, transport, ctas) for transport in ("ibgda", "ibrc") for ctas in scale.put_ctas]
    return [_measurement(scale, *each) for each in (*rates, *limited, *puts)]


def _measurement(scale: _Scale, curve: str, transport: str, ctas: int) -> Measurement:
    """Every CTA has a queue pair of its own. Scattered p send every other element."""
    if curve in (PUT, LIMITED_PUT):
        smallest, largest = (size_flag(size * ctas) for size in scale.put_sizes)
        test, what = "shmem_put_bw", f"-b {smallest} -e {largest} -f {scale.step}"
    else:
        size, stride = size_flag(scale.p_size * ctas), 2 if curve == SCATTERED_P else 1
        test, what = "shmem_p_bw", f"-i {stride} -b {size} -e {size}"
    iters, warmup_iters = scale.put_iters if test == "shmem_put_bw" else scale.p_iters
    command = f"{test} --transport {transport} -n {iters} -w {warmup_iters} -c {ctas} -t {scale.threads} {what}"
    link = {"PGAS_SOFTHCA_GBPS": _LINK} if curve == LIMITED_PUT else {}
    return Measurement(curve, transport, ctas, command, {"PGAS_IBGDA_NUM_RC_PER_PE": str(ctas), "PGAS_QP_DEPTH": "8192"} | link)


def measure(measurements: Sequence[Measurement], names: Sequence[str], commit: str | None) -> Iterator[dict[str, Any]]:
    """Run the measurements on two PEs; yield what is known after each: the JSON that findings.py describes.

    Args:
        measurements: of plan().
        names: of the GPUs here, of which two PEs take two at most; none in the simulator.
        commit: what was measured; None: the commit of this working tree, if it is one.
    """
    data: dict[str, Any] = {
        "machine": None,
        "gpu": names[0] if names else None,
        "gpus": min(len(names), 2),
        "commit": commit or report.commit(),
        "date": report.now(),
        "versions": {},
        "runs": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(measurements):
            result = Path(folder) / f"{number}.json"
            test, *flags = shlex.split(each.command)
            job = [*mpirun(2), sys.executable, "-m", f"pgas.perftests.{test}", *flags, "--json", str(result)]
            succeeded = run(job, _LIMIT, each.environment)
            found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"rows": []}
            data |= {key: found[key] for key in ("machine", "versions") if key in found}
            data["runs"].append(
                {"curve": each.curve, "transport": each.transport, "ctas": each.ctas, "command": f"mpirun -n 2 {each.command}"}
                | {"environment": _settings(each.environment), "succeeded": succeeded}
                | {key: found[key] for key in ("date", "adapter", "engine", "cpus", "rows") if key in found}
            )
            yield data


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a run's rates depend on: its own, and those set for all."""
    return {name: value for name, value in sorted((os.environ | environment).items()) if name.startswith(("PGAS_", "NUMBA_"))}


def _draw(data: Mapping[str, Any], folder: Path, machine: str) -> None:
    pictures.draw_put_bandwidth(data, str(folder / f"put_bandwidth-{machine}.png"))
    pictures.draw_put_rate(data, str(folder / f"put_rate-{machine}.png"))


def _read(path: Path) -> dict[str, Any]:
    """Return the data of a file that measure() made.

    Raises:
        ValueError: it is something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        [(run["curve"], run["rows"]) for run in data["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of make figures: {error}") from None
    return data


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, draw and say what is seen; exit status 1 if a run failed."""
    parser = argparse.ArgumentParser("python -m pgas.perftests.figures", description=__doc__.split("\n")[0])
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="draw from this file and measure nothing")
    parser.add_argument("--folder", type=Path, help="where files go [perftests/baselines, or where --from lies]")
    parser.add_argument("--ctas", metavar="N,N,...", help="CTAs that send p, if not 1 to 64 (without a GPU 1 to 4)")
    parser.add_argument("--commit", help="what is measured, where the sources are in no git repository")
    arguments = parser.parse_args(argv)
    if arguments.source is not None:
        try:
            data = _read(arguments.source)
        except ValueError as error:
            parser.error(str(error))
        folder, machine = arguments.folder or arguments.source.parent, arguments.source.stem.removeprefix("figures-")
    else:
        if shutil.which("mpirun") is None:
            parser.error("measuring needs an mpirun")
        p_ctas = None
        if arguments.ctas is not None:
            if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", arguments.ctas):
                parser.error(f"argument --ctas: {arguments.ctas!r} is no list of numbers from 1 to 9999")
            p_ctas = sorted({int(word) for word in arguments.ctas.split(",")})
        names = gpus()
        folder, machine = arguments.folder or BASELINES, machine_name(names)
        folder.mkdir(exist_ok=True)
        # The NIC's kernel takes a spare GPU, or shares one with a PE.
        with mps() if len(names) in (1, 2) else contextlib.nullcontext():
            for data in measure(plan(gpu=bool(names), p_ctas=p_ctas), names, arguments.commit):
                (folder / f"figures-{machine}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    _draw(data, folder, machine)
    print(*findings.summary(data), sep="\n")
    return 0 if all(run["succeeded"] for run in data["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
