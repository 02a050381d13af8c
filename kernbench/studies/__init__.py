"""Studies: from parameters to a table, and from the table to figures and findings."""
