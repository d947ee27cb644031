"""Number of stores that kernels have made, by which the scheduler tells spinning from progress.

To the scheduler a thread that waits again looks like one that still waits. But a wait ends by a store, so as long as this PE stores it is
not idle. Modules add to `stores` where they store.
"""

stores = 0
