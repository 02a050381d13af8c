"""Placement of the parts of a tensor."""
