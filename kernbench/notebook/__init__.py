"""The notebook's panels: the explorer, the live view of one run, the topology picker."""

from kernbench.notebook.view import ExplorerView, LiveRun, explore
from kernbench.notebook.view_machine import TopologyPicker

__all__ = ["ExplorerView", "LiveRun", "TopologyPicker", "explore"]
