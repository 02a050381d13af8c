"""The machine file as a graph of nodes and directed links."""
