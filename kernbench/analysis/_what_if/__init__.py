"""Predictions of a changed machine, from the records of a run."""
