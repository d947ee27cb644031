"""Device functions by kernel language; pgas has those for Numba."""

from pgas.nvshmem.core.device import numba as numba
