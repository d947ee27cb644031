"""What connects the PEs: GPUs, streams, NICs, and the choice of a transport for each pair of PEs."""
