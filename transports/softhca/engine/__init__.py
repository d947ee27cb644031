"""The data path of the software card: doorbells, WQEs, packets, CQEs."""

from pathlib import Path

__all__ = ["SOURCES"]

#: Folders that the engine is compiled from.
SOURCES = (str(Path(__file__).parent), str(Path(__file__).parent.parent))
