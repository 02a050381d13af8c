"""The how-to guides: their code runs as it is printed, and their configuration is valid."""

from __future__ import annotations

import re
import sys

import pytest

from tests.repo import ROOT

GUIDES = sorted((ROOT / "docs" / "howto").glob("*.md"))
FILE = re.compile(r"# (\w+\.py)\n")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_code_runs_in_order(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = blocks(guide.read_text(encoding="utf-8"), "python")
    if any("import torch\n" in block for block in code):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert code
    names: dict[str, object] = {"__name__": "guide"}
    for block in code:
        file = FILE.match(block)
        if file:
            (tmp_path / file[1]).write_text(block, encoding="utf-8")
            sys.modules.pop(file[1].removesuffix(".py"), None)
        else:
            exec(compile(block, str(guide), "exec"), names)


def test_the_entry_of_an_all_reduce_is_valid(tmp_path, monkeypatch):
    from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
    from kernbench.config import default_ccl_path

    text = (ROOT / "docs" / "howto" / "all_reduce.md").read_text(encoding="utf-8")
    module, *_ = blocks(text, "python")
    (tmp_path / "my_collectives.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_collectives", None)
    (entry,) = blocks(text, "yaml")
    packaged = default_ccl_path().read_text(encoding="utf-8")
    for text in (entry, packaged.replace("algorithms:\n", entry, 1)):
        (tmp_path / "ccl.yaml").write_text(text, encoding="utf-8")
        config = load_ccl_config(tmp_path / "ccl.yaml")
        assert resolve_algorithm_config("my_ring_allreduce", config).kernel.__name__ == "my_ring"
