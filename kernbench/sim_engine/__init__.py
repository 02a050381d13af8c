"""The simulation engine: clock, links, memories, and the log."""
