"""The memory of slots: of a GPU (vmm) or of the host (memfd), and the passing of its descriptors to other processes (fds)."""
