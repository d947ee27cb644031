"""Precise sleeps for threads that poll: the engine, the proxy, and the forwarder."""

import ctypes

_PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Set the calling thread's timer slack to 1 µs, because Linux's default of 50 µs is longer than the shortest sleeps."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
