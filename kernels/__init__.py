"""Device functions: what runs on an SM (or in the simulator) when a kernel calls ``pgas.put``.

Read in this order: window (addresses), state (the private page), ptx (the primitives), p2p (loads and stores over the window), then
rma, amo, signal and sync, which check the operands of the public names and hand them to the transport.
"""
