"""What the tests in the guest import and compile, imported and compiled.

Run on the machine it leaves bytecode and Numba's code on disk; imported by rxe.forks in the guest it finds them there.
"""

import hypothesis
import mpi4py
import numpy.random
import numpy.testing
import pyverbs.addr
import pyverbs.cq
import pyverbs.device
import pyverbs.mr
import pyverbs.pd
import pyverbs.qp

import pgas.perftests.jobs
import pgas.transports.ibrc.verbs
from pgas.transports.ibrc import loop, work_requests

__all__ = ["hypothesis", "mpi4py", "numpy", "pgas", "pyverbs"]

loop.compiled(work_requests)
