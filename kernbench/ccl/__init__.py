"""Collectives: algorithms as kernels on many PEs, the queues that join them, what they cost and which one to take."""
