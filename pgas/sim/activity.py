"""A count of the stores that kernels have made: how the scheduler tells spinning from going forward.

A thread whose wait has ended and that waits again looks, to the scheduler, like one that goes on waiting. But what ends waits is
somebody's store, so as long as this PE stores, it is not idle. Modules add to `stores` where they store.
"""

stores = 0
