"""The control path of the software card: the commands, and the objects that they make."""
