"""What explains a machine: `python -m pgas doctor` and `topo`."""
