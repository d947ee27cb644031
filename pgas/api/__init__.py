"""What users call, each with its docstring."""
