from __future__ import annotations

import pytest

from kernbench.benches import registry
from kernbench.benches.registry import Bench, bench, benches, resolve
from kernbench.errors import ConfigError

SHIPPED = {
    "gemm-single-pe", "qkv-gemm", "qkv-gemm-multi-pe", "gpt3-qkv", "va-offset-verify", "matmul-composite",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_benches", dict(registry._benches))


def some_bench(torch):
    """Do something.

    More words.
    """
    return "done"


def test_shipped_benches_are_known_by_name():
    assert {b.name for b in benches()} >= SHIPPED
    assert [b.name for b in benches()] == sorted(b.name for b in benches())
    assert all(b.description for b in benches())


def test_underscores_are_hyphens():
    assert resolve("gemm_single_pe") is resolve("gemm-single-pe")
    assert bench("my_own_bench", "Mine")(some_bench) is some_bench
    assert resolve("my-own-bench") == Bench("my-own-bench", "Mine", some_bench)
    assert resolve("my-own-bench")(None) == "done"


def test_unknown_names_list_the_known_and_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean gemm-single-pe.*known: .*va-offset-verify") as caught:
        resolve("gemm-singel-pe")
    assert "pkg.mod:run" in str(caught.value)
    with pytest.raises(ConfigError, match="bench 'zzz' is unknown; known:"):
        resolve("zzz")


def test_a_path_will_do():
    found = resolve("tests.benches.test_registry:some_bench")
    assert (found("x"), found.description, found.is_milestone) == ("done", "Do something.", False)
    assert resolve("kernbench.benches.gemm_single_pe:run").name == "gemm-single-pe"


@pytest.mark.parametrize("path", ["no.such.module:run", "kernbench.benches.registry:nothing", "math:pi"])
def test_bad_paths(path):
    with pytest.raises(ConfigError, match=r"cannot be imported|expected a function run\(torch\)"):
        resolve(path)


def test_a_name_belongs_to_one_function():
    bench("taken", "One")(some_bench)
    bench("taken", "One, defined again as a notebook cell does")(some_bench)
    assert resolve("taken").description.endswith("cell does")
    with pytest.raises(ConfigError, match=r"is taken by .*some_bench"):
        bench("taken", "Another")(lambda torch: None)


def test_milestones_are_marked():
    bench("report", "Writes one", milestone=True)(some_bench)
    assert resolve("report").is_milestone
