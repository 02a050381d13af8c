"""Components that `topology.yaml` names by `impl`: the parts of a PE, CPUs, memories and network nodes."""

# Compiled subclasses of `Job` need it first, whichever module is imported first.
import kernbench.components._pe  # noqa: F401
