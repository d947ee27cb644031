"""Loops on the CPU that Numba compiles, and their memory operations: the proxy thread and the software card's cpu engine."""
