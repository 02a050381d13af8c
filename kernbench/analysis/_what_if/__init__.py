"""What a change of the machine would save: predictions from the records of a run."""
