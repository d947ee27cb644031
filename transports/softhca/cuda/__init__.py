"""The cuda engine of the software NIC: a persistent kernel that runs the states of engine/ on a GPU."""
