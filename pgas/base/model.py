"""Limits of launches on an H100 (SXM5), which are also those of the simulator.

They are from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0. The number of SMs is from NVIDIA's
"H100 Tensor Core GPU Architecture". A block has 48 KiB of shared memory, because only kernels that opt in may have more, and numba-cuda's
do not. Registers are not counted, because the simulator has no machine code.
"""

from math import prod

NAME = "H100"
SMS = 132
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
THREADS_PER_BLOCK = 1024
THREADS_PER_WARP = 32
WARPS_PER_SM = 64
BLOCKS_PER_SM = 32
SHARED_PER_BLOCK = 48 << 10
SHARED_PER_SM = 228 << 10
#: Shared memory that the system reserves for each block, in addition to what the block requests.
SHARED_OF_SYSTEM = 1 << 10

_Index = tuple[int, int, int]


def resident_blocks(threads: int, shared: int) -> int:
    """Return how many blocks can run concurrently.

    Args:
        threads: number of threads per block.
        shared: bytes of shared memory per block.
    """
    warps = -(-threads // THREADS_PER_WARP)
    return SMS * min(BLOCKS_PER_SM, WARPS_PER_SM // warps, SHARED_PER_SM // (shared + SHARED_OF_SYSTEM))


def check_launch(kernel: str, grid: _Index, block: _Index, shared: int, most_threads: int | None = None) -> None:
    """Reject a launch that CUDA rejects. Raises ValueError if a size is out of range. most_threads: launch_bounds of the kernel."""
    limit = THREADS_PER_BLOCK if most_threads is None else most_threads
    if not 0 < prod(block) <= limit:
        raise ValueError(f"{kernel}: a block of {block} has {prod(block)} threads, but must have 1 to {limit}")
    if prod(grid) < 1:
        raise ValueError(f"{kernel}: the grid {grid} has no block")
    for what, sizes, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(size > allowed for size, allowed in zip(sizes, most, strict=True)):
            raise ValueError(f"{kernel}: the {what} {sizes} is larger than {most}, which CUDA allows")
    if not 0 <= shared <= SHARED_PER_BLOCK:
        raise ValueError(f"{kernel}: dynamic shared memory must have 0 to {SHARED_PER_BLOCK} bytes, not {shared}")
