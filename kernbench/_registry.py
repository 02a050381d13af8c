"""Names for things that are imported on first use; a dotted path `pkg.mod:attr` is accepted wherever a name is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from kernbench.errors import ConfigError, quote

_BUILTIN = "kernbench.components.builtin"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def hint(name: object, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the end of a message about an unknown name: the nearest known one, and all of them.

    A name is near from a `likeness` between 0 and 1 on.

    >>> hint("rooter", ["router", "sram"])
    'did you mean router? known: router, sram'
    """
    known = list(known)
    near = get_close_matches(str(name), known, n=1, cutoff=likeness)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(known)}"


def locate(path: str) -> Any:
    """Return the module `path`, or what a module holds: `pkg.mod`, `pkg.mod.name`.

    >>> locate("kernbench._registry.locate") is locate
    True
    """
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        parent, _, name = path.rpartition(".")
        if error.name != path or not parent:
            raise
        holder = import_module(parent)
        if not hasattr(holder, name):
            raise ImportError(f"{parent} has no {name!r}") from error
        return getattr(holder, name)


class Registry:
    """Names of one kind of thing.

    Parameters
    ----------
    kind : str
        What the names are of, for messages.
    paths : mapping of str to str
        `pkg.mod:attr` of each name.
    """

    def __init__(self, kind: str, paths: Mapping[str, str]) -> None:
        self.kind = kind
        self._paths = dict(paths)
        self._found: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """The registered names, sorted."""
        return sorted(self._paths)

    def fault(self, name: str) -> str | None:
        """Fault of `name` as a name or dotted path, or None; imports nothing."""
        if name in self._paths or _DOTTED.fullmatch(name):
            return None
        return f"is not a {self.kind}; {hint(name, self.names)}; or a dotted path pkg.mod:name"

    def resolve(self, name: str) -> Any:
        """Return the object that `name`, or the dotted path, refers to.

        Raises
        ------
        ConfigError
            If the name, module or attribute does not exist.
        """
        if name in self._found:
            return self._found[name]
        if (fault := self.fault(name)) is not None:
            raise ConfigError(f"{quote(name)} {fault}")
        module, _, attribute = self._paths.get(name, name).partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (Exception, SystemExit) as error:  # a module of the user's own may raise anything
            raise ConfigError(f"{self.kind} {quote(name)}: {error}; expected an importable pkg.mod:name") from error
        self._found[name] = found
        return found


COMPONENTS = Registry(
    "component",
    {
        "router": f"{_BUILTIN}.transit:Router",
        "switch": f"{_BUILTIN}.transit:Switch",
        "ucie": f"{_BUILTIN}.transit:Ucie",
        "pcie_ep": f"{_BUILTIN}.transit:PcieEp",
        "io_noc": f"{_BUILTIN}.transit:IoNoc",
        "sip_switch": f"{_BUILTIN}.transit:SipSwitch",
        "io_cpu": f"{_BUILTIN}.cpus:IoCpu",
        "m_cpu": f"{_BUILTIN}.cpus:MCpu",
        "hbm_ctrl": f"{_BUILTIN}.memory:hbm_ctrl",
        "sram": f"{_BUILTIN}.memory:Sram",
        "llc": f"{_BUILTIN}.llc:LlcSlice",
        "pe_cpu": f"{_BUILTIN}.cpus:PeCpu",
        "pe_scheduler": f"{_BUILTIN}.pe_scheduler:PeScheduler",
        "pe_dma": f"{_BUILTIN}.pe_dma:PeDma",
        "pe_fetch_store": f"{_BUILTIN}.pe_tcm:PeFetchStore",
        "pe_gemm": f"{_BUILTIN}.pe_gemm:PeGemm",
        "pe_math": f"{_BUILTIN}.pe_math:PeMath",
        "pe_tcm": f"{_BUILTIN}.pe_tcm:PeTcm",
        "pe_mmu": f"{_BUILTIN}.pe_mmu:PeMmu",
        "pe_ipcq": f"{_BUILTIN}.pe_ipcq:PeIpcq",
    },
)
# What the simulator calls of a component. Those with the same methods can replace each other.
_TRANSIT, _MEMORY = ("latency_ps",), ("on_read", "on_write")
METHODS = {
    **dict.fromkeys(("router", "switch", "ucie", "pcie_ep", "io_noc"), _TRANSIT),
    **dict.fromkeys(("hbm_ctrl", "sram"), _MEMORY),
    "pe_gemm": ("tile_ps", "peak"),
}
FORMATTERS = Registry(
    "formatter",
    {
        "comparison": "kernbench.viz._html:compare_html",
        "machine": "kernbench.viz.still:machine_html",
        "records": "kernbench.viz._html:records_html",
        "result": "kernbench.viz._html:result_html",
        "why": "kernbench.viz._html:why_html",
    },
)
PLOTS = Registry("plot", {name: f"kernbench.viz._axes:{name}" for name in ("stages", "timeline", "roofline")})
RUNNERS = Registry("kernel runner", {"tl": "kernbench.triton_emu._runner:run_kernel_program"})
PROGRAMS = Registry("check of an MSCCL program", {".xml": "kernbench.ccl._msccl_program:entry_faults"})
STUDIES = Registry(
    "study",
    {
        "ccl": "kernbench.studies.ccl:CclStudy",
        "design-space": "kernbench.studies.design_space:DesignSpaceStudy",
        "gemm": "kernbench.studies.gemm:GemmStudy",
        "gqa": "kernbench.studies.gqa:GqaStudy",
        "layers": "kernbench.studies.layers:LayersStudy",
        "models": "kernbench.studies.models:ModelsStudy",
        "probe": "kernbench.studies.probe:ProbeStudy",
    },
)
_TOPOLOGIES = (
    "none", "ring_1d", "ring_1d_unidir", "mesh_2d", "torus_2d", "mesh_2d_no_wrap", "mesh_cycle", "double_torus",
    "tree_binary", "double_tree", "hypercube", "all_to_all", "intercube", "local_ring", "hierarchical_3level",
    "through_switch",
)  # fmt: skip
TOPOLOGIES = Registry("topology of participants", {name: f"kernbench.ccl._topologies:{name}" for name in _TOPOLOGIES})
MAPPERS = Registry(
    "mapper", {name: f"kernbench.ccl._group:{name}" for name in ("leader_only", "by_shard", "by_cube", "all_pes")}
)
VALIDATORS = Registry(
    "validator",
    {
        name: f"kernbench.ccl._group:{name}"
        for name in ("single_shard_per_rank", "multi_pe_sip_local", "at_a_switch_that_adds")
    },
)


def html_of(name: str, shown: object) -> str:
    """Return an object as HTML, for notebooks: what its formatter draws, which is imported on the first use."""
    return str(FORMATTERS.resolve(name)(shown))
