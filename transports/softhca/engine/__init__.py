"""The data path of the software NIC: doorbells, WQEs, packets, CQEs."""

from pathlib import Path

#: Directories from which the engine is compiled.
SOURCES = (str(Path(__file__).parent), str(Path(__file__).parent.parent))
