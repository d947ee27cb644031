"""What users' data lies in: the symmetric heap, its arrays, registered local memory, and team memory."""
