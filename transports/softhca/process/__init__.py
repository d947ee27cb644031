"""The process of the software NIC, and its clients."""
