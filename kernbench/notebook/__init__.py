"""The notebook's panels: the explorer and the topology picker."""

from kernbench.notebook.view import ExplorerView, explore
from kernbench.notebook.view_machine import TopologyPicker

__all__ = ["ExplorerView", "TopologyPicker", "explore"]
