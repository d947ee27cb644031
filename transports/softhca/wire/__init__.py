"""The wire of the software NIC: RoCE v2, the RC transport over UDP.

Read in this order: ``packets`` (the data sheet: opcodes, headers, their codec), ``icrc``.

IBTA: InfiniBand Architecture Specification, volume 1; chapter 9 is the transport layer. Annex A17 is RoCE v2.
"""
