"""What the paths through a NIC share: send queues, landing cells, atomics."""
