"""The process of the software card, and how PEs talk to it."""
