"""The number of stores by kernels. The scheduler uses it to distinguish progress from spinning.

The scheduler cannot distinguish a thread that begins a new wait from one that is still in the old wait. However, every wait ends by a
store, so this PE is not idle while the number grows. Modules add to `stores` where they store, and engine.poll_again() subtracts what polls
have stored.
"""

stores = 0
