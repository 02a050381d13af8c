"""What pytest leaves alone.

The paired .py of a notebook runs as its notebook and is never imported; the notebooks of full reports are copies run
with other parameters, which have nothing to be compared with.
"""

collect_ignore_glob = ["notebooks/*.py", "milestones/*.py", "milestones/output/*"]
