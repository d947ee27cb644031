"""A conformance suite for PGAS libraries in Numba CUDA kernels: a file for each chapter of checklist.py, written against library.py only.

Under mpirun, at one to four PEs, over each transport:

    PGAS_TRANSPORT=ibgda mpirun -n 2 python -m pytest tests/conformance -q --conformance-report report.json
    python -m conformance.report report.json        (PYTHONPATH=tests)  prints the results of all runs so far

CONFORMANCE_WITHOUT lists capabilities that the machine lacks, separated by commas; checks.py has their names (capability()).

To test another library, write a module that offers pgas's names and set CONFORMANCE_LIBRARY to its name. Names that the module lacks are
reported as refused.
"""
