"""A program's signature is its panel."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest

import kernbench as kb
from kernbench.benches._parameters import signature_parameters
from kernbench.errors import ConfigError
from kernbench.notebook._workloads import workloads
from kernbench.studies.study import Choices, explorations

MACHINE = kb.load("preset:small")


def program(
    torch,
    *,
    rows: Annotated[int, "of both"] = 64,
    scale: float = 0.5,
    name: str = "x",
    check: bool = True,
    staging: Literal["one", "two"] = "two",
    sip: Annotated[str, "which one", Choices(lambda m: [str(i) for i in range(m.config.n_sips)])] = "0",
    plain=3,
):
    """Do something.

    More of it.
    """


PARAMETERS = {x.name: x for x in signature_parameters(program)}


def test_every_parameter_with_a_default_is_asked_for():
    assert list(PARAMETERS) == ["rows", "scale", "name", "check", "staging", "sip", "plain"]
    assert PARAMETERS["rows"].description == "of both"
    assert PARAMETERS["plain"].kind is int


def test_choices_are_those_of_the_machine():
    assert PARAMETERS["staging"].options(MACHINE) == ["one", "two"]
    assert PARAMETERS["sip"].options(MACHINE) == ["0"]
    assert PARAMETERS["sip"].options(kb.load("preset:six_sip_torus")) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rows", "1,024", 1024),
        ("rows", 7, 7),
        ("scale", "2", 2.0),
        ("check", "False", False),
        ("staging", "one", "one"),
    ],
)
def test_texts_become_values(name, text, value):
    got = PARAMETERS[name].parse(text, MACHINE)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("rows", "many", "rows = 'many' must be a whole number"),
        ("rows", "0", "rows = 0 must be >= 1"),
        ("rows", "1.5", "must be a whole number"),
        ("scale", "x", "must be a number"),
        ("check", "maybe", "must be true or false"),
        ("staging", "onne", "did you mean one? known: one, two"),
        ("sip", "1", "known: 0"),
    ],
)
def test_a_wrong_text_is_refused_with_what_was_expected(name, text, says):
    with pytest.raises(ConfigError) as refused:
        PARAMETERS[name].parse(text, MACHINE)
    assert says in str(refused.value)


def test_a_parameter_without_a_field_is_refused():
    def odd(torch, *, shape: tuple = (1, 2)):
        pass

    with pytest.raises(ConfigError, match=r"shape: .* has no field in a panel"):
        signature_parameters(odd)


def test_studies_and_benches_appear_by_themselves():
    names = workloads()
    assert {"study gemm", "study probe", "bench qkv-gemm"} <= set(names)
    assert {f"study {name}" for name in explorations()} <= set(names)
    assert not [name for name in names if "milestone" in name]


def test_functions_of_the_user_stand_first():
    found = workloads([program])
    assert next(iter(found)) == "program"
    assert found["program"].title == "Do something."


def test_every_work_has_parameters_that_its_machine_allows():
    for work in workloads().values():
        for parameter in work.parameters:
            assert parameter.parse(parameter.default, kb.load("preset:default")) == parameter.default


def test_a_bench_of_the_users_own_appears_when_it_is_registered(monkeypatch):
    from kernbench.benches import registry

    monkeypatch.setattr(registry, "_benches", dict(registry._benches))

    @registry.bench("of-my-own", "Adds nothing")
    def run(torch, *, count: int = 2):
        pass

    work = workloads()["bench of-my-own"]
    assert (work.title, work.parameters[0].name) == ("Adds nothing", "count")
