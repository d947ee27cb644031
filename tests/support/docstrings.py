"""Runs the examples in the docstrings of public functions and classes: a program for a job of two PEs.

Prints a line for each example that fails, and the number of those that pass. Examples know pgas, np (NumPy) and cuda.
"""

import doctest
import inspect
import sys

import numpy as np

import pgas


def examples() -> dict[str, doctest.DocTest]:
    """Return the examples by public name, in alphabetical order, so that all PEs run them in the same order."""
    parser, found = doctest.DocTestParser(), {}
    for name in sorted(pgas.__all__):
        text = inspect.getdoc(getattr(pgas, name)) or ""
        if callable(getattr(pgas, name)) and ">>> " in text:
            found[name] = parser.get_doctest(text, {"pgas": pgas, "np": np, "cuda": pgas.cuda}, name, None, None)
    return found


def main() -> int:
    runner, failed = doctest.DocTestRunner(verbose=False), 0
    with pgas.init() as job:
        for name, example in examples().items():
            said: list[str] = []
            failed += runner.run(example, out=said.append, clear_globs=False).failed
            if said:
                print(f"PE {job.my_pe}: {name}: {''.join(said)}", flush=True)
            pgas.barrier_all()
    print(f"{len(examples())} examples, {failed} failures")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
