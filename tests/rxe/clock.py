"""The guest's clock: the processor's time stamp counter, which QEMU passes through, and not the HPET that the kernel would choose.

The kernel compares the counters of the guest's processors, which run when the machine's scheduler lets them, and finds them to differ. The
clock is then the HPET: each look at it is a system call, an access to a device and a fight for QEMU's global lock, 26 us in place of 4, and
loops that wait look at it all the time. Nor does the kernel measure the counter well on a busy machine (once 5 times too fast): it is told.
"""

import ctypes
import mmap
import platform
import time
from collections.abc import Callable

__all__ = ["clock_options", "time_stamp_khz"]

#: rdtsc; shl rdx, 32; or rax, rdx; ret
_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")


def clock_options() -> str:
    """Return the kernel's options for its clock (Documentation/admin-guide/kernel-parameters.txt); none where there is no guest either."""
    if platform.machine() != "x86_64":
        return ""
    return f"tsc=reliable tsc_early_khz={time_stamp_khz()}"


def time_stamp_khz(seconds: float = 0.2) -> int:
    """Return the frequency of this machine's time stamp counter in kHz, measured for so long. On x86-64 only."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_READ)
        place = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
        first = _pair(read)
        time.sleep(seconds)
        last = _pair(read)
        del place  # the page cannot be unmapped while it is there
    return round((last[1] - first[1]) * 1_000_000 / (last[0] - first[0]))


def _pair(read: Callable[[], int]) -> tuple[int, int]:
    """Return nanoseconds and the counter at one moment: of twenty tries the one that was interrupted least."""
    tries = []
    for _ in range(20):
        before = time.monotonic_ns()
        counter = read()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2, counter))
    return min(tries)[1:]
