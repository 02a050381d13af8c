"""Components that `topology.yaml` names by `impl`: the parts of a PE, CPUs, memories and transit."""

# Compiled classes that derive from `pe.Job` are made after it, whichever module is imported first.
import kernbench.components._pe  # noqa: F401
