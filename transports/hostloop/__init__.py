"""Loops that Numba compiles for the CPU, and their memory operations: the proxy thread and the software NIC's cpu engine."""
