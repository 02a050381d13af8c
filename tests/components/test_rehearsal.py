"""Composites that are looked up instead of simulated: not one bit of a run depends on it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from kernbench.components.command import Load, Run, Value
from kernbench.components.rehearsal import Alone
from kernbench.dtypes import float16
from kernbench.topology.naming import hbm, pe_dma
from tests.components.one_pe import SPACE, VA, engine_of, launch, pointer
from tests.components.test_against_reference import odd_machine

B, OUT = 1 << 20, 2 << 20
LATE = 500_000  # ps: within the second of some products


@pytest.fixture
def seen(monkeypatch):
    """Count what ran alone, and what was disturbed."""
    count = {"alone": 0, "disturbed": 0}
    made, disturbed = Alone.__init__, Alone.disturb

    def init(self, *arguments) -> None:
        count["alone"] += 1
        made(self, *arguments)

    def disturb(self, at) -> None:
        count["disturbed"] += 1
        disturbed(self, at)

    monkeypatch.setattr(Alone, "__init__", init)
    monkeypatch.setattr(Alone, "disturb", disturb)
    return count


def products(tl, steps, me: int) -> None:
    """Multiply out of the own slice, one product after the other, waiting for it or not."""
    for (m, k, n), loaded, epilogue, wait, offset in steps:
        a, b, out = (pointer(offset + at, me) for at in (0, B, OUT))
        left = tl.load(a, shape=(m, k)) if "a" in loaded else tl.ref(a, (m, k))
        right = tl.load(b, shape=(k, n)) if "b" in loaded else tl.ref(b, (k, n))
        done = tl.composite("gemm", left, right, out, epilogue=epilogue)
        if wait:
            tl.wait(done)


def everything(engine):
    """Return all that a run leaves behind: rows, transactions with their memories' times and keys, busy times."""
    records = engine.records()
    moves = records.causes.moves
    routes = [tuple(records.causes.nodes[i] for i in route) for route in records.causes.routes]
    number = {route: i for i, route in enumerate(sorted(routes))}
    columns = [[number[routes[i]] for i in moves["route"]], *(moves[c] for c in moves if c not in ("route", "command"))]
    table = np.stack([np.asarray(column, np.int64) for column in columns])
    busy = dict(zip(records.components, records.component_busy_ps.tolist(), strict=True))
    return records.digest(), table[:, np.lexsort(table[::-1])].tolist(), busy


def runs(machine, kernel, pes: int, **options):
    """Run with what is known beforehand, and without; return both engines."""
    made = []
    for use in (True, False):
        engine = engine_of(machine, **options)
        if not use:
            engine.fabric.pairs = lambda route: False
        launch(engine, kernel, *((0, pe) for pe in range(pes)))
        made.append(engine)
    return made


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_depends_on_it(seed, mode, seen):
    rng = Random(f"rehearsal {seed}")
    machine = odd_machine(rng) if seed % 2 else {}
    shapes = [tuple(rng.choice((32, 64, rng.randint(1, 130))) for _ in range(3)) for _ in range(2)]
    programs = [
        [
            (rng.choice(shapes), rng.choice(("", "a", "b", "ab")), rng.choice(((), ("relu",))), rng.random() < 0.8, off)
            for off in rng.choices((0, 256, 2048), k=rng.randint(1, 3))
        ]
        for _ in range(7)
    ]
    guests = [rng.randrange(8) for _ in range(rng.choice((0, 2, 8)))]

    def kernel(tl) -> None:
        me = tl.program_id(0)
        if me < 7:
            products(tl, programs[me], me)
        for of in guests if me == 7 else ():
            value = tl.load(pointer(0, of), shape=(2000,))
            tl.store(pointer(3 << 20, of), value)

    used, not_used = runs(machine, kernel, 8, mode=mode, log="tile")
    assert used.certified == not_used.certified
    if mode == "exact" or used.certified:
        assert everything(used) == everything(not_used)


def test_what_ran_alone_and_what_was_disturbed(seen):
    def kernel(tl) -> None:
        me = tl.program_id(0)
        if me < 6:
            products(tl, [((64, 64, 64), "", (), True, 0)] * 2, me)
        else:
            tl.load(pointer(0, 5), shape=(256,))

    used, not_used = runs({}, kernel, 7, mode="exact", log="tile")
    # Six begin together: the first is simulated, as is what the guest disturbs; each has a second turn.
    assert seen["alone"] == 11
    assert seen["disturbed"] == 1
    assert everything(used) == everything(not_used)
    assert used.env.events < not_used.env.events / 2


@pytest.mark.parametrize("where", [pe_dma, hbm])
def test_streams_that_have_joined_at_a_link_of_a_pe(seen, where):
    def kernel(tl) -> None:
        products(tl, [((64, 64, 64), "", (), True, 0)] * 20, tl.program_id(0))

    made = []
    for use in (True, False):
        engine = engine_of({}, mode="exact", log="tile")
        if not use:
            engine.fabric.pairs = lambda route: False
        for src in (0, 2):
            route = engine.fabric.route(pe_dma(0, 0, src), where(0, 0, 1))
            engine.fabric.send(route, 1 << 20, route.key(), lambda _: None, None)
        launch(engine, kernel, (0, 1))
        made.append(engine)
    assert seen["alone"] > 0
    assert everything(made[0]) == everything(made[1])


@pytest.mark.parametrize("late", range(0, 3000, 1000))
def test_streams_that_meet_just_before_its_slice(seen, late):
    def kernel(tl) -> None:
        products(tl, [((64, 64, 64), "", (), True, 0)] * 3, tl.program_id(0))

    made = []
    for use in (True, False):
        engine = engine_of({}, mode="exact", log="tile")
        if not use:
            engine.fabric.pairs = lambda route: False

        def send(cube: int, engine=engine) -> None:
            route = engine.fabric.route(pe_dma(0, cube, 0), hbm(0, 0, 0))
            engine.fabric.send(route, 1 << 12, route.key(), lambda _: None, None)

        for cube in (1, 4):
            engine.env.call_at(LATE + late, send, cube)
        launch(engine, kernel)
        made.append(engine)
    assert seen["disturbed"] == 1
    assert everything(made[0]) == everything(made[1])


def test_a_command_that_comes_meanwhile(seen):
    def kernel(tl) -> None:
        products(tl, [((64, 64, 64), "", (), True, 0)] * 3, tl.program_id(0))

    ends = []
    for use in (True, False):
        engine = engine_of(mode="exact", log="tile")
        if not use:
            engine.fabric.pairs = lambda route: False
        pe = engine.part("sip0.cube0.pe0.pe_cpu").pe
        late = Load("late", output=Value((64, 64), float16), runs=(Run(VA + SPACE, 8192, 8192),))
        engine.env.call_at(LATE, lambda _, pe=pe, late=late: pe.add(pe.job(late), LATE))
        launch(engine, kernel)
        ends.append(everything(engine))
    assert ends[0] == ends[1]
    assert seen == {"alone": 1, "disturbed": 1}


def test_values_come_from_the_own_operands(seen):
    def kernel(tl) -> None:
        products(tl, [((32, 64, 32), "", (), True, 0)], tl.program_id(0))

    engine = engine_of(mode="fast", data=True)
    rng = np.random.default_rng(0)
    expected = []
    for pe in range(4):
        a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((32, 64), (64, 32)))
        mmu = engine.part(f"sip0.cube0.pe{pe}.pe_cpu").pe.mmu
        for at, values in ((0, a), (B, b)):
            raw = values.reshape(-1).view(np.uint8)
            engine.memory.poke(mmu.translate(VA + pe * SPACE + at, raw.size), raw)
        expected.append((mmu.translate(VA + pe * SPACE + OUT, 2048), a @ b))
    launch(engine, kernel, *((0, pe) for pe in range(4)))
    assert seen["alone"] == 3
    for pieces, product in expected:
        assert np.array_equal(engine.memory.peek(pieces).view(np.float16).reshape(32, 32), product)
