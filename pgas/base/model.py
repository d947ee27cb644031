"""Limits of launches on an H100 (SXM5), which are also those of the simulator.

They are from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0. The number of SMs is from NVIDIA's
"H100 Tensor Core GPU Architecture". A block has 48 KiB of shared memory, because only kernels that opt in may have more, and numba-cuda's
do not. Registers are not counted, because the simulator has no machine code.
"""

from math import prod

NAME = "H100"
COMPUTE_CAPABILITY = (9, 0)
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

#: Attributes of the device by CUDA's names (CU_DEVICE_ATTRIBUTE_...), as numba.cuda.get_current_device() has them.
ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": SMS,
    "MAX_THREADS_PER_BLOCK": THREADS_PER_BLOCK,
    "MAX_THREADS_PER_MULTIPROCESSOR": WARPS_PER_SM * THREADS_PER_WARP,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": BLOCKS_PER_SM,
    **{f"MAX_BLOCK_DIM_{axis}": size for axis, size in zip("XYZ", MAX_BLOCK, strict=True)},
    **{f"MAX_GRID_DIM_{axis}": size for axis, size in zip("XYZ", MAX_GRID, strict=True)},
    "WARP_SIZE": THREADS_PER_WARP,
    "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_PER_BLOCK,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_PER_SM - SHARED_OF_SYSTEM,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHARED_PER_SM,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": SHARED_OF_SYSTEM,
    "MAX_REGISTERS_PER_BLOCK": 64 << 10,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 64 << 10,
    "TOTAL_CONSTANT_MEMORY": 64 << 10,
    "L2_CACHE_SIZE": 50 << 20,
    "COMPUTE_CAPABILITY_MAJOR": COMPUTE_CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": COMPUTE_CAPABILITY[1],
    "UNIFIED_ADDRESSING": 1,
    "CAN_MAP_HOST_MEMORY": 1,
    "CONCURRENT_KERNELS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "INTEGRATED": 0,
}

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
