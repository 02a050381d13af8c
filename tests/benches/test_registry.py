from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.benches import registry
from kernbench.benches.registry import Bench, bench, benches, resolve
from kernbench.errors import ConfigError

SHIPPED = {
    "gemm-single-pe", "qkv-gemm", "qkv-gemm-multi-pe", "gpt3-qkv", "va-offset-verify", "matmul",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    benches()  # a module registers when it is first imported, and not again
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
    assert bench("my-own-bench", "Mine")(some_bench) is some_bench
    assert resolve("my_own_bench") == Bench("my-own-bench", "Mine", some_bench)
    assert resolve("my-own-bench").function(None) == "done"


def test_unknown_names_list_the_known_and_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean gemm-single-pe.*known: .*va-offset-verify") as caught:
        resolve("gemm-singel-pe")
    assert "pkg.mod:run" in str(caught.value)
    with pytest.raises(ConfigError, match="bench 'zzz' is unknown; known:"):
        resolve("zzz")


def test_a_path_will_do():
    found = resolve("tests.benches.test_registry:some_bench")
    assert (found.function("x"), found.description, found.is_milestone) == ("done", "Do something.", False)
    assert resolve("kernbench.benches.products:gemm").name == "gemm-single-pe"


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


@pytest.mark.parametrize("name", ["my_bench", "MyBench", "my--bench", "-my-bench", "my bench", "3", ""])
def test_a_name_is_kebab_case(name):
    with pytest.raises(ConfigError, match="is not in kebab-case; use for example"):
        bench(name, "Mine")


@pytest.mark.parametrize("description", ["", "  ", None])
def test_a_description_is_not_empty(description):
    with pytest.raises(ConfigError, match="'mine' has no description"):
        bench("mine", description)


def test_a_module_of_benches_registers_one(tmp_path, monkeypatch):
    import kernbench.benches as package

    (tmp_path / "registers_nothing.py").write_text("def run(torch): ...\n")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(ConfigError, match=r"module kernbench\.benches\.registers_nothing registers no bench; decorate"):
        benches()


def test_benches_have_numbers_from_1():
    known = benches()
    assert [resolve(str(i + 1)) for i in range(len(known))] == known
    for number in ("0", str(len(known) + 1)):
        with pytest.raises(ConfigError, match=f"expected a number from 1 to {len(known)}"):
            resolve(number)


def test_milestones_are_marked():
    bench("report", "Writes one", milestone=True)(some_bench)
    assert resolve("report").is_milestone


def lazy(torch):
    yield


def test_a_generator_is_no_bench():
    refused = pytest.raises(TypeError, match=r"test_registry.py:\d+: bench lazy is a generator")
    with refused:
        bench("lazy-bench", "does nothing")(lazy)
    with refused:
        kb.run(lazy, "preset:small")
    with refused:
        kb.run(f"{__name__}:lazy", "preset:small")
