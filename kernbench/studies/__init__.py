"""Studies: a question asked of a machine at many points, and a report of the answers.

The shipped studies are found here by name. `attention`, `gqa`, `milestone` and `probe` are modules whose functions
notebooks use for single runs.
"""

from typing import TYPE_CHECKING, Any

from kernbench._names import found
from kernbench.studies._findings import Finding
from kernbench.studies.study import Parameter, Report, Study
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
    from kernbench.studies.serving import ServingStudy

__all__ = [
    "CclStudy", "Chart", "CollectivesStudy", "Column", "DesignSpaceStudy", "FidelityStudy", "Finding", "GemmStudy",
    "GqaStudy", "LayersStudy", "ModelsStudy", "Parameter", "ProbeStudy", "ProductsStudy", "Report", "ServingStudy",
    "Study",
]  # fmt: skip

# Studies are imported on first use: they load the simulator.
_STUDIES = {
    "CclStudy": "kernbench.studies.ccl",
    "CollectivesStudy": "kernbench.studies.lists",
    "DesignSpaceStudy": "kernbench.studies.design_space",
    "FidelityStudy": "kernbench.studies.fidelity",
    "GemmStudy": "kernbench.studies.gemm",
    "GqaStudy": "kernbench.studies.gqa",
    "LayersStudy": "kernbench.studies.layers",
    "ModelsStudy": "kernbench.studies.models",
    "ProbeStudy": "kernbench.studies.probe",
    "ProductsStudy": "kernbench.studies.lists",
    "ServingStudy": "kernbench.studies.serving",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _STUDIES, name)
