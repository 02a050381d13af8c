"""Physical and virtual addresses, their allocators, and the PE's address translation."""
