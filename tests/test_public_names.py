"""What `import kernbench` gives, and the paths that programs import from."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pkgutil import resolve_name

import pytest

import kernbench
from tests.repo import PACKAGE, ROOT, python_files

PUBLIC = re.findall(r"^\| `(kernbench[\w.]*)` \|", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
PATHS = [
    "kernbench.topology.builder:resolve_topology",
    "kernbench.topology.builder:load_topology",
    "kernbench.sim_engine.engine:GraphEngine",
    "kernbench.runtime_api.context:RuntimeContext",
    "kernbench.runtime_api.types:DeviceSelector",
    "kernbench.runtime_api.types:resolve_device",
    "kernbench.runtime_api.bench_runner:run_bench",
    "kernbench.runtime_api.collective:simulator",
    "kernbench.runtime_api.tensor:Tensor",
    "kernbench.runtime_api.tensor:TensorHandle",
    "kernbench.runtime_api.tensor:TensorShard",
    "kernbench.runtime_api.tensor:deploy_tensor",
    "kernbench.policy.placement.dp:DPPolicy",
    "kernbench.policy.placement.dp:ShardSpec",
    "kernbench.policy.placement.dp:resolve_dp_policy",
    "kernbench.policy.placement.dp:column_wise",
    "kernbench.policy.placement.dp:row_wise",
    "kernbench.policy.placement.dp:replicate",
    "kernbench.policy.placement.dp:tiled_column_major",
    "kernbench.policy.placement.dp:tiled_row_major",
    "kernbench.policy.address.phyaddr:PhysAddr",
    "kernbench.policy.address.allocator:AddressConfig",
    "kernbench.policy.address.allocator:PEMemAllocator",
    "kernbench.policy.address.allocator:AllocationError",
    "kernbench.policy.address.va_allocator:VirtualAllocator",
    "kernbench.policy.address.pe_mmu:PeMMU",
    "kernbench.triton_emu.tl_context:TLContext",
    "kernbench.benches.registry:bench",
    "kernbench.benches.registry:resolve",
    "kernbench.cli.main:main",
    "kernbench.ccl.install:load_ccl_config",
    "kernbench.ccl.install:resolve_algorithm_config",
    "kernbench.ccl.sfr_config:configure_sfr_intercube_multisip",
    "kernbench.ccl.sfr_config:configure_sfr_intracube_pe_ring",
    "kernbench.ccl.alpha_beta:AlphaBeta",
    "kernbench.ccl.bounds:Bounds",
    "kernbench.ccl.testing:run_kernel_in_mock",
    "kernbench.ccl.diagnostics:pointer_dump",
]


def test_all_names_exist_and_are_sorted():
    assert list(kernbench.__all__) == sorted(kernbench.__all__)
    for name in kernbench.__all__:
        assert getattr(kernbench, name).__doc__


def test_unknown_names_list_the_known():
    with pytest.raises(AttributeError, match=r"no attribute 'sesion'; known: .*session"):
        kernbench.sesion  # noqa: B018


def test_names_are_found_in_a_fresh_interpreter():
    code = "import kernbench as kb; print([getattr(kb, n).__name__ for n in kb.__all__])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    found = [
        "DPPolicy", "Limits", "Machine", "Result", "Study", "Tensor", "calibrate", "kernbench.ccl", "compare",
        "kernbench.errors", "explore", "fidelity", "gemm", "resolve_topology", "load_curve", "kernbench.ops",
        "picture", "kernbench.pipeline", "read", "read_chakra", "report", "run", "kernbench.serving", "session",
        "sweep", "TLContext", "kernbench.torch", "kernbench.tp", "kernbench.triton",
    ]  # fmt: skip
    assert out.strip() == str(found)


@pytest.mark.parametrize("path", PATHS)
def test_programs_can_import(path):
    module, _, name = path.partition(":")
    assert getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist_and_say_what_they_are(name):
    if name.startswith("kernbench.torch."):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert inspect.getdoc(resolve_name(name))


def test_names_at_the_root_are_public():
    assert {
        f"kernbench.{name}" for name in kernbench.__all__ if name not in ("ccl", "serving", "torch", "triton")
    } <= set(PUBLIC)
    assert len(PUBLIC) == len(set(PUBLIC)) <= 120
    assert max(name.count(".") for name in PUBLIC) <= 2


def test_modules_without_public_names_are_private():
    found = {module for name in (*PUBLIC, *(path.replace(":", ".") for path in PATHS)) for module in parents(name)}
    # Files and commands name what these contain; `compat` holds another design's names.
    found |= {"kernbench.__main__", "kernbench.compat"}
    found |= {home(name) for name in PUBLIC if not name.startswith("kernbench.torch.")}
    named = tuple(f"kernbench.{name}." for name in ("benches", "components.builtin", "kernels", "ops", "studies"))
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in python_files(PACKAGE)}
    public = {m for m in modules if not m.rpartition(".")[2].startswith("_") and not m.startswith(named)}
    assert public - found == set()
    assert {m for m in modules if m.rpartition(".")[2] == "_schema"}


def home(name):
    """The module that defines a name."""
    return getattr(resolve_name(name), "__module__", name)


def parents(name):
    """The name itself and what contains it."""
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def code_for_readers():
    """The Python that users are shown: notebooks, milestones, the README and the guides."""
    for path in (*ROOT.glob("notebooks/*.py"), *ROOT.glob("milestones/*.py")):
        yield path.name, path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *ROOT.glob("docs/howto/*.md")):
        for block in re.findall(
            r"^```(?:python|py)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield path.name, block


def test_readers_are_shown_public_names_only():
    wrong = []
    for name, code in code_for_readers():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernbench"):
                found = {f"{node.module}.{alias.name}" for alias in node.names}
                packages = {public.rpartition(".")[0] for public in PUBLIC}
                # A module that is public as a whole: what it says of itself names what is in it.
                known = node.module in PUBLIC and inspect.ismodule(resolve_name(node.module))
                found -= {each for each in found if each.replace("studies.Study", "Study") in PUBLIC}
                wrong += [f"{name}: {each}" for each in found if not (known or each in packages)]
    assert not wrong
