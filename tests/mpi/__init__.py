"""Tests on PEs that use internals of pgas. Every PE runs all of them: ``mpirun -n 2 python -m pytest tests/mpi``."""
