"""Studies: a question asked of a machine at many points, and a report of the answers.

The shipped studies are found here by name. `gqa`, `milestone` and `probe` are modules whose functions notebooks use for
single runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernbench.studies.study import Finding, Parameter, Report, Study
from kernbench.viz.charts import Chart, Column

if TYPE_CHECKING:
    from kernbench.studies.ccl import CclStudy
    from kernbench.studies.design_space import DesignSpaceStudy
    from kernbench.studies.fidelity import FidelityStudy
    from kernbench.studies.gemm import GemmStudy
    from kernbench.studies.gqa import GqaStudy
    from kernbench.studies.layers import LayersStudy
    from kernbench.studies.lists import CollectivesStudy, ProductsStudy
    from kernbench.studies.models import ModelsStudy
    from kernbench.studies.probe import ProbeStudy

__all__ = [
    "CclStudy", "Chart", "CollectivesStudy", "Column", "DesignSpaceStudy", "FidelityStudy", "Finding", "GemmStudy",
    "GqaStudy", "LayersStudy", "ModelsStudy", "Parameter", "ProbeStudy", "ProductsStudy", "Report", "Study",
]  # fmt: skip

# Studies are imported on first use: they load the simulator.
_STUDIES = {
    "CclStudy": "ccl", "CollectivesStudy": "lists", "DesignSpaceStudy": "design_space", "FidelityStudy": "fidelity",
    "GemmStudy": "gemm", "GqaStudy": "gqa", "LayersStudy": "layers", "ModelsStudy": "models", "ProbeStudy": "probe",
    "ProductsStudy": "lists",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _STUDIES:
        raise AttributeError(f"module 'kernbench.studies' has no attribute {name!r}; known: {', '.join(__all__)}")
    return getattr(import_module(f"kernbench.studies.{_STUDIES[name]}"), name)
