"""Which commands an access to memory comes after, against a comparison of all pairs of spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.components._command import Command, Load, Run, Store
from kernbench.components._pe import AccessOrder


class Access(Command):
    """A command that touches some spans, and has some predecessors."""

    def __init__(self, name: str, spans: list[tuple[int, int, bool]]) -> None:
        super().__init__(name)
        self.spans = spans
        self.first: list[Access] = []

    def conflicts(self, other: Access) -> bool:
        return any(
            start < other_end and other_start < end and (writes or other_writes)
            for start, end, writes in self.spans
            for other_start, other_end, other_writes in other.spans
        )

    def before(self) -> set[Access]:
        """Return all that it comes after, directly or not."""
        found: set[Access] = set()
        todo = [*self.first]
        while todo:
            other = todo.pop()
            if other not in found:
                found.add(other)
                todo += other.first
        return found


SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()).map(lambda s: (s[0], s[0] + s[1], s[2])),
    min_size=1, max_size=4,
)  # fmt: skip


@given(st.lists(st.one_of(SPANS, st.integers(0, 20)), max_size=40))
def test_conflicting_accesses_keep_their_order_and_no_others_do(steps):
    order, under_way = AccessOrder(), []
    for n, step in enumerate(steps):
        if isinstance(step, int):
            # One whose predecessors are complete ends.
            ready = [access for access in under_way if not any(other in under_way for other in access.first)]
            if ready:
                done = ready[step % len(ready)]
                under_way.remove(done)
                order.remove(done)
            continue
        access = Access(f"access {n}", step)
        access.first = order.add(access, step)
        assert len(set(access.first)) == len(access.first), "each is noted once"
        assert all(other in under_way and access.conflicts(other) for other in access.first)
        assert {other for other in under_way if access.conflicts(other)} <= access.before()
        under_way.append(access)
    for access in under_way:
        order.remove(access)
    assert order.add(Access("last", [(0, 100, True)]), [(0, 100, True)]) == []


def test_a_predecessor_is_noted_once_however_many_spans_meet():
    order = AccessOrder()
    store = Store("store", runs=tuple(Run(256 * i, 16, 16) for i in range(100)))
    load = Load("load", runs=(Run(0, 25_600, 25_600),))
    assert order.add(store, store.touches()) == []
    assert order.add(load, load.touches()) == [store]


def test_a_long_row_of_accesses_notes_the_last_only():
    order = AccessOrder()
    stores = [Store(f"store {i}", runs=(Run(0, 64, 64),)) for i in range(100)]
    assert [order.add(store, store.touches()) for store in stores] == [[], *([store] for store in stores[:-1])]
    loads = [Load(f"load {i}", runs=(Run(32, 8, 8),)) for i in range(3)]
    assert [order.add(load, load.touches()) for load in loads] == [[stores[-1]]] * 3
    last = Store("last", runs=(Run(0, 64, 64),))
    assert set(order.add(last, last.touches())) == {stores[-1], *loads}
