"""Finished points: what each is found by, and the cache of this machine."""
