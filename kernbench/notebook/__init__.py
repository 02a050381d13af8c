"""The notebook's panels: the explorer, the live view of one run, the topology picker."""

from kernbench.notebook._collectives import collective
from kernbench.notebook._machine_panel import TopologyPicker
from kernbench.notebook._programs import program_of, step_part
from kernbench.notebook._view import ExplorerView, LiveRun, explore

__all__ = ["ExplorerView", "LiveRun", "TopologyPicker", "collective", "explore", "program_of", "step_part"]
