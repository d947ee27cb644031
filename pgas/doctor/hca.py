"""``pgas hca``: objects and counters of this machine's software NICs, while their jobs run."""

import argparse
import contextlib
from typing import Any

from pgas.base.errors import TransportError
from pgas.base.text import printable
from pgas.doctor.info import table
from pgas.job.paths import card


def run(_: argparse.Namespace) -> None:
    """Print queue pairs, CQs, keys, and counters of every software NIC of this machine."""
    cards = card.find()
    if not cards:
        print("no software NIC runs on this machine: a job with PGAS_TRANSPORT=ibgda or ibrc starts one")
    for name in cards:
        try:
            with contextlib.closing(card.observe(name, _ANSWER_S)) as observer:
                text = _seen(name, observer.counters())
        except TransportError as error:  # It has ended, does not answer, or is another user's.
            text = f"software NIC {name}: cannot be queried: {printable(str(error), 1000)}"
        except (LookupError, TypeError, AttributeError):
            text = f"software NIC {name}: its answer cannot be read; it may be of another version of pgas"
        print(text)


#: Seconds to wait for a software NIC's answer.
_ANSWER_S = 10.0


def _seen(name: str, seen: dict[str, Any]) -> str:
    totals = ", ".join(f"{printable(key)} {_cell('', value)}" for key, value in seen["hca"].items())
    lines = [f"software NIC {name} (process {_cell('', seen['pid'])}): {totals}"]
    if port := seen.get("port"):
        lines += ["port: " + ", ".join(f"{printable(key)} {_cell('', value)}" for key, value in port.items())]
    for kind in ("qps", "cqs", "keys", "uars"):
        if rows := seen[kind]:
            shown = [key for key in rows[0] if key in _HCA_COLUMNS[kind]]
            lines += ["", kind, table([tuple(shown), *(tuple(_cell(key, row[key]) for key in shown) for row in rows)])]
    return "\n".join(lines)


#: The columns of each kind of object.
_HCA_COLUMNS = {
    "qps": "qpn pe state depth remote_qpn consumer producer wqes nbytes doorbells cqes errors first_error".split(),  # noqa: SIM905
    "cqs": "cqn pe size collapsed cqes".split(),  # noqa: SIM905
    "keys": "key pe access start nbytes".split(),  # noqa: SIM905
    "uars": "page pe qpns".split(),  # noqa: SIM905
}


def _cell(key: str, value: object) -> str:
    if isinstance(value, list):
        return ",".join(_cell(key, item) for item in value) or "-"
    hexadecimal = isinstance(value, int) and key in ("qpn", "qpns", "remote_qpn", "cqn", "key", "start", "first_error")
    return f"{value:#x}" if hexadecimal else printable(str(value))
