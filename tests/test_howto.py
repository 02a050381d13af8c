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


@pytest.fixture(scope="module")
def sql():
    """The guide to SQL, and its tables by name."""
    text = (ROOT / "docs" / "howto" / "sql.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec("".join(blocks(text, "python")), names)
    return text, {name: names[name] for name in ("log", "occupancy", "path")}


def test_the_tables_for_sql_have_the_columns_and_types_of_the_guide(sql):
    text, tables = sql
    found = dict(re.findall(r"^`(\w+)`: (.*?)(?=^`\w+`: |^## )", text, re.MULTILINE | re.DOTALL))
    assert [*found] == [*tables]
    for name, part in found.items():
        rows = re.findall(r"^\| (`.*?) \| (integer|real|text) \|", part, re.MULTILINE)
        columns = [(column, kind) for names, kind in rows for column in re.findall(r"`(\w+)`", names)]
        assert [column for column, _ in columns] == list(tables[name].columns)
        for column, kind in columns:
            found_kind = {"i": "integer", "f": "real"}.get(tables[name][column].dtype.kind, "text")
            assert found_kind == kind, column
    quantities = re.search(r"\| `quantity` \| text \| (.*) \|", text)[1]
    assert {*tables["occupancy"]["quantity"]} <= {*re.findall(r"\w+", quantities)}
    assert {*tables["path"]["row"]} - {-1} <= {*tables["log"]["row"]}


def test_the_queries_of_the_guide_run(sql):
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    text, tables = sql
    base = duckdb.connect()
    for name, table in tables.items():
        base.register(name, table)
    busy, outstanding, entering, path = (base.sql(query).df() for query in blocks(text, "sql"))
    log = tables["log"]
    own = log[(log["pe"] == 0) & (log["kind"] == "load")]
    row = busy[(busy["pe"] == 0) & (busy["kind"] == "load")].iloc[0]
    assert row["busy_ns"] == pytest.approx((own["end_ns"] - own["start_ns"]).sum())
    assert {*outstanding["component"]} > {"host", "sip0.cube0.pe0.pe_dma"}
    assert (outstanding["outstanding"] <= outstanding["most"]).all()
    assert len(entering) == ((log["kind"] == "gemm") & (log["pe"] == 0)).sum()
    assert path["ns"].is_monotonic_decreasing
