"""Design-space sweeps: a plan of points, run on all cores or on a cluster, into a table."""
