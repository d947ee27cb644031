"""Runs tests of rdma-core, as installed by Debian, on the emulated devices: ``python -m uverbs.rdma_core FOLDER RESULTS MODULE...``.

FOLDER has the unpacked package ``tests`` (unpack); RESULTS is written as JSON lines: [test, outcome, why].
"""

import gzip
import json
import os
import sys
import unittest
from pathlib import Path

#: Debian's folder of these tests; some files are compressed.
DEBIAN = Path("/usr/share/doc/rdma-core/tests")


def unpack(folder: Path) -> None:
    target = folder / "tests"
    target.mkdir()
    for path in sorted(DEBIAN.iterdir()):
        if path.suffix == ".gz":
            (target / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.suffix == ".py":
            (target / path.name).write_bytes(path.read_bytes())


class Outcomes(unittest.TextTestResult):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.seen: list[tuple[str, str, str]] = []

    def _note(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        self.seen.append((test.id().removeprefix("tests."), outcome, why))

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        super().addFailure(test, err)  # type: ignore[arg-type]
        self._note(test, "failed", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: object) -> None:
        super().addError(test, err)  # type: ignore[arg-type]
        self._note(test, "error", self.errors[-1][1])


def main(folder: str, results: str, *modules: str) -> None:
    sys.path[:0] = [folder, f"{folder}/tests"]
    from args_parser import parser  # rdma-core's module, which its package imports by both names
    from tests.args_parser import parser as same

    for one in (parser, same):
        sys.argv = ["tests", "--dev", "mlx5_0", "--port", "1", "--gid", "0"]
        one.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"tests.{module}" for module in modules])
    outcomes = unittest.TextTestRunner(verbosity=2, resultclass=Outcomes).run(suite)
    Path(results).write_text("".join(f"{json.dumps(seen)}\n" for seen in outcomes.seen))
    sys.stderr.flush()
    os._exit(0)  # the tests leave contexts behind, whose destructors outlive the card


if __name__ == "__main__":
    main(*sys.argv[1:])
