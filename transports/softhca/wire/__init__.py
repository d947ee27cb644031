"""The wire of the software NIC: RoCE v2, the RC transport over UDP, to software NICs of other machines and to any other RoCE v2 device.

Read in this order: ``packets`` (the data sheet: opcodes, headers, their codec), ``icrc``, ``records`` (connections and the port, and who
writes them), ``frames`` (packets to be sent), ``requester``, ``completer``, ``responder`` (the state machine of a queue pair), ``inbound``
(which packets count), ``loop``, ``port`` (the socket).

IBTA: InfiniBand Architecture Specification, volume 1; chapter 9 is the transport layer. Annex A17 is RoCE v2.
"""

from pathlib import Path

from pgas.transports.softhca.engine import SOURCES as ENGINE

#: Directories from which the loop of a card with a wire is compiled.
SOURCES = (*ENGINE, str(Path(__file__).parent))
