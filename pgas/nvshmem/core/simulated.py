"""Arrays in the simulator, where there is no CuPy: symmetric arrays with NumPy's operators."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from pgas.job.memory.array import SymmetricArray

__all__ = ["SimulatedArray", "as_array"]


class SimulatedArray(SymmetricArray, np.lib.mixins.NDArrayOperatorsMixin):
    """A symmetric array with what CuPy's arrays have. The results of operators are NumPy's arrays."""

    def _view(self, ary: np.ndarray) -> "SimulatedArray":
        return SimulatedArray(ary, self.stream, self._block)  # type: ignore[call-arg]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*(np.asarray(value) for value in inputs), **kwargs)

    def get(self) -> np.ndarray:
        """Return a copy in host memory."""
        return self.copy_to_host()

    @property
    def data(self) -> SimpleNamespace:
        """The address, as CuPy has it."""
        return SimpleNamespace(ptr=self.__cuda_array_interface__["data"][0])


def as_array(memory: Any) -> SimulatedArray:
    """Return a symmetric array with NumPy's operators."""
    return SimulatedArray(memory._ary, memory.stream, memory._block)  # type: ignore[call-arg]
