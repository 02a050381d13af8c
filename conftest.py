"""The paired .py of a notebook runs as its notebook, and is never imported."""

collect_ignore_glob = ["notebooks/*.py", "milestones/*.py"]
