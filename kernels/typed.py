"""Modules of constants as device code uses them: every integer is typed by constant().

In device code, a Python integer is an int64. The sum of a uint64, such as an address, and an int64 is an int64, and Numba compares the two
as float64. ``layout.WORD`` of this module is a uint64, like an address. In the simulator, it is the same integer as in the module itself.
"""

from types import ModuleType

from pgas.kernels import layout as _layout
from pgas.kernels.compiler import constant
from pgas.transports.mlx5 import cqe as _cqe
from pgas.transports.mlx5 import wqe as _wqe


def _typed(module: ModuleType) -> ModuleType:
    view = ModuleType(module.__name__, module.__doc__)
    vars(view).update({name: constant(v) if type(v) is int and 0 <= v < 1 << 64 else v for name, v in vars(module).items()})
    return view


cqe, layout, wqe = _typed(_cqe), _typed(_layout), _typed(_wqe)
