"""Records of a run and their evaluation, which uses only numbers, not the machine."""
