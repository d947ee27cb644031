"""Memory for users' data: the symmetric heap, its arrays, registered local memory, and team memory."""
