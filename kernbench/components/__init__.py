"""The components of a machine: PEs, memories, CPUs, and what messages pass through."""
