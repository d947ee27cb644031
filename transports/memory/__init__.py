"""The memory of slots, on a GPU (vmm) or on the host (memfd), and passing its descriptors to other processes (fds)."""
