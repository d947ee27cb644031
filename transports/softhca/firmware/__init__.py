"""The control path of the software card: commands, and the objects that they create."""
