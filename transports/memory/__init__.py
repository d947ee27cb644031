"""Slots in memory: of a GPU (vmm) or of the host (memfd), and how their descriptors reach other processes (fds)."""
