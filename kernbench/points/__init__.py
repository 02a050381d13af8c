"""Finished points: their keys, and the cache of this machine."""
