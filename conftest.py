"""What pytest leaves alone: the paired .py of a notebook, which runs as its notebook and is never imported, and the
notebooks of full reports, copies run with other parameters that have nothing to be compared with.
"""

collect_ignore_glob = ["notebooks/*.py", "milestones/*.py", "milestones/output/*"]
