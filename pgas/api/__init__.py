"""The public API, with its docstrings."""
