"""What the tests in the guest import and compile, imported and compiled.

Run on the machine it leaves bytecode and Numba's code on disk; imported by rxe.forks in the guest it finds them there.
"""

import pgas.perftests.jobs
import pgas.transports.ibrc.verbs
import rxe.libraries
from pgas.transports.ibrc import loop, work_requests

__all__ = ["pgas", "rxe"]

loop.compiled(work_requests)
