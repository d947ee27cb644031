"""Compiles the kernels of programs in README and docs for a GPU, with no GPU: ``python compiled_pages.py TRANSPORT FOLDER``.

Runs a program as ``python -m pgas compile`` does, with the arguments of the page's sessions, until each of its kernels is compiled.
"""

import re
import sys
from pathlib import Path

from examples import PAGES, commands, programs

from pgas import compile as kernels
from pgas import sass


def main(transport, folder):
    sass.configure(transport)
    for page in PAGES:
        for name, text in programs(page, "@pgas.jit").items():
            path = Path(folder, name)
            path.write_text(text, encoding="utf-8")
            missing = set(re.findall(r"^@pgas\.jit(?!.*device=True).*\ndef (\w+)", text, re.MULTILINE))
            for command in commands(page):
                if command.program == name and missing:
                    found = kernels.launched(str(path), list(command.arguments[1:]))
                    assert not found.errors, found.errors
                    missing -= found.arguments.keys()
            assert not missing, f"{page.name} {name}: no session launches {missing}"
            print(page.name, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
