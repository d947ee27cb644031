"""Device functions: the code that runs on an SM, or in the simulator, when a kernel calls ``pgas.put``.

Read in this order: window.py (addresses), layout.py (words shared with the host), state.py (checks, errors, waits), compiler/ptx.py (the
primitives), paths/p2p.py (loads and stores over the window), then ops/, which checks the operands of the public functions and passes them
to the path.
"""
