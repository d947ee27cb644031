"""How PEs find each other and call together: MPI, the rendezvous store, and collective calls over either."""
