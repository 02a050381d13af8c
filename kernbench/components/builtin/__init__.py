"""The components that a machine file can name."""
