"""Commands that start a Python for a module of pgas."""

import sys
from pathlib import Path

#: Program that imports this pgas, wherever it is, and runs one of its modules. Its arguments: pgas/__init__.py, module, the module's own.
_PROGRAM = """
import runpy, sys
from importlib import util
spec = util.spec_from_file_location("pgas", sys.argv[1])
sys.modules["pgas"] = pgas = util.module_from_spec(spec)
spec.loader.exec_module(pgas)
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of pgas in this Python, with arguments.

    ``python -m`` would look for modules in the working folder first, and take a user's numbers.py for Python's.
    """
    return [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).resolve().parents[1] / "__init__.py"), module, *arguments]
