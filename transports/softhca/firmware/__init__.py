"""The control path of the software NIC: commands, and the objects that they create."""
