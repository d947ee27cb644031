"""The cuda engine of the software card: a persistent kernel that runs the states of engine/ on a GPU."""
