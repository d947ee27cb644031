"""Reports on a machine: `python -m pgas doctor` and `topo`."""
