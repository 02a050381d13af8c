"""Studies: a question asked of a machine at many points, and a report of the answers."""

from kernbench.studies.study import Finding, Parameter, Report, Study
from kernbench.viz.charts import Chart, Column

__all__ = ["Chart", "Column", "Finding", "Parameter", "Report", "Study"]
