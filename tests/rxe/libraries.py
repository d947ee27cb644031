"""What tests in the guest import that is not this project's: a guest is kept on disk when it has imported this (kept.py).

pgas sets NUMBA_ENABLE_CUDASIM where no GPU is; the guest has none and Numba is imported before pgas.
"""

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import greenlet
import hypothesis
import llvmlite.binding
import mpi4py
import numba
import numba.cuda.simulator
import numpy.random
import numpy.testing
import pyverbs.addr
import pyverbs.cq
import pyverbs.device
import pyverbs.mr
import pyverbs.pd
import pyverbs.qp
import rich.console
import rich.table
from numba.core.registry import cpu_target

__all__ = ["cpu_target", "greenlet", "hypothesis", "llvmlite", "mpi4py", "numba", "numpy", "pyverbs", "rich"]

#: Imports what Numba knows of Python's and NumPy's types, as the first function does that it compiles or finds on disk.
cpu_target.target_context.refresh()
