"""Conformance tests, one file a chapter. Every PE runs all of them: ``mpirun -n 2 python -m pytest tests/mpi``."""
