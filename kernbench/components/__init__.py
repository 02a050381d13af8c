"""The components of a machine: PEs, memories, CPUs and network nodes."""
