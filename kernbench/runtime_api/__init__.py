"""The host's side: a torch-like namespace over one simulated machine."""
