"""The library under test: the public names of the module that CONFORMANCE_LIBRARY names, pgas if nothing is set.

Chapters import this module under the name pgas, in the place of the library, and use nothing else of it. An adapter for another library
is a module with the same names in ``__all__`` (the docstrings of pgas say what each does). Asked of it beyond its functions:

PGAS_TRANSPORT, PGAS_SYMMETRIC_SIZE, PGAS_MAX_MEMORY_PER_GPU, PGAS_TIMEOUT: what a run asks for. An adapter hands them on.
info(): the transport, adapter, engine, machine and number of PEs of the job.
"""

import importlib
import os

import pytest

#: The module under test.
NAME = os.environ.get("CONFORMANCE_LIBRARY", "pgas")

_library = importlib.import_module(NAME)
globals().update({name: getattr(_library, name) for name in _library.__all__})
__all__ = [*_library.__all__]

#: Whether texts of errors are pgas's, which its own chapters hold it to; of others it is only asked that they raise.
OWN_WORDS = NAME == "pgas"


def has(*names):
    """Whether the library has all of these functions."""
    return all(hasattr(_library, name) for name in names)


#: What chapters ask for. Of kernels compilers also look up the names of other globals here, which are no functions of a library.
_ASKED = frozenset(importlib.import_module("pgas").__all__)


def __getattr__(name):
    """What the library lacks; a test that comes to it, in a kernel or outside, is reported as refused."""
    if name not in _ASKED:
        raise AttributeError(f"no library has {name}")
    pytest.skip(f"refused: {NAME} has no {name}", allow_module_level=True)
