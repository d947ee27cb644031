"""Run the programs of this folder one after another in one job, each with a log of its own: together.py FOLDER PROGRAM[:right]...

Programs whose folders have plans of replays follow these instead.
"""

import contextlib
import io
import runpy
import sys
from pathlib import Path

from pgas.check import record, replay

HERE = Path(__file__).parent


def main(folder, runs):
    recorder = (replay.follow if replay.is_planned(folder / runs[0]) else record.install)(folder / runs[0])
    for run in runs:
        name, _, form = run.partition(":")
        recorder.restart(folder / run)
        sys.argv = [str(HERE / f"{name}.py"), *([form] if form else [])]
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
    recorder.log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
