"""The machine file made into a graph of nodes and directed links."""
