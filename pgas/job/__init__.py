"""The job on the host, from init to finalize: bootstrap, memory, heap, collective calls, process failures."""
