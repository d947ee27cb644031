"""The library under test: the public names of the module that CONFORMANCE_LIBRARY names, pgas if nothing is set.

Chapters import this module under the name pgas, in the place of the library, and use nothing else of it; an adapter for another library is a module with
the same names (README and docstrings of pgas say what each does) in ``__all__``. What is asked of a library beyond its functions:

PGAS_TRANSPORT, PGAS_SYMMETRIC_SIZE, PGAS_TIMEOUT: what a run asks for. An adapter hands them on.
info(): the transport, adapter, engine, machine and number of PEs of the job.
"""

import importlib
import os

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


def __getattr__(name):
    raise AttributeError(f"{NAME} has no {name}")
