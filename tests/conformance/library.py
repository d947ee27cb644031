"""The library under test: the public names of the module in CONFORMANCE_LIBRARY, by default pgas.

Chapters import this module as pgas, instead of the library, and use nothing else of it. An adapter for another library is a module with the
same names in ``__all__``, which behave as the docstrings of pgas say. It also has to:

* apply PGAS_TRANSPORT, PGAS_SYMMETRIC_SIZE, PGAS_MAX_MEMORY_PER_GPU and PGAS_TIMEOUT;
* return the transport, adapter, engine, machine and number of PEs of the job from info().
"""

import importlib
import os

import pytest

#: The module under test.
NAME = os.environ.get("CONFORMANCE_LIBRARY", "pgas")

_library = importlib.import_module(NAME)
globals().update({name: getattr(_library, name) for name in _library.__all__})
__all__ = [*_library.__all__]

#: Whether the library is pgas, whose error messages are checked; other libraries only have to raise.
OWN_WORDS = NAME == "pgas"


def has(*names):
    return all(hasattr(_library, name) for name in names)


#: Names that chapters use. When compiling kernels, Numba looks up other names here, too, which are not of the library.
_ASKED = frozenset(importlib.import_module("pgas").__all__)


def __getattr__(name):
    """Report a test as refused if it uses a name that the library lacks, in a kernel or on the host."""
    if name not in _ASKED:
        raise AttributeError(f"no library has {name}")
    pytest.skip(f"refused: {NAME} has no {name}", allow_module_level=True)
