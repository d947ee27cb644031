"""The job on the host, from init to finalize: PEs that meet, their memory, their heap, their deaths."""
