"""How PEs find each other and make collective calls: MPI, the rendezvous store, and the calls over either."""
