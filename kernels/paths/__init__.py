"""The ways of bytes on the device, modules of one shape: p2p, ibgda and ibrc."""
