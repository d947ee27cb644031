"""What the simulator and GPU runs share: dtypes of the compilers, functions compiled for the CPU, and atomics on raw addresses."""
