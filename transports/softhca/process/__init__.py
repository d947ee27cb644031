"""The process of the software card, and its clients."""
