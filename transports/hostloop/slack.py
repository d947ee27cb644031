"""Sleeps of threads that poll for a card, the engine or what stands between kernels and it."""

import ctypes

__all__ = ["sleep_precisely"]

_PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Let sleeps of the calling thread end within a microsecond of their time: Linux's 50 us would double the shortest ones."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
