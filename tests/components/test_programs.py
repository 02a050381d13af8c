"""Programs of a thread take turns on the same greenlets, and nothing of one is left for the next."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref

import pytest
from greenlet import getcurrent

from kernbench.errors import KernelError
from tests.components import one_pe

SEEN = contextvars.ContextVar("SEEN", default=0)
PES = tuple((0, pe) for pe in range(4))


def test_programs_of_a_later_launch_run_on_the_greenlets_of_an_earlier_one():
    engine, used = one_pe.engine_of(), []

    def kernel(tl):
        used.append(getcurrent())
        tl.load(one_pe.pointer(), shape=(64,)) + 1.0

    for _ in range(2):
        one_pe.launch(engine, kernel, *PES)
    assert set(used[4:]) <= set(used[:4]), "a program in which another one ran before"


def test_context_variables_end_with_their_program():
    engine, found = one_pe.engine_of(), []

    def kernel(tl):
        found.append(SEEN.get())
        SEEN.set(1)
        tl.load(one_pe.pointer(), shape=(64,))
        found.append(SEEN.get())

    for _ in range(2):
        one_pe.launch(engine, kernel)
    assert found == [0, 1, 0, 1]
    assert SEEN.get() == 0


def test_an_error_ends_its_program_alone():
    ran = []

    def fails(tl):
        raise ValueError("no")

    def runs(tl):
        ran.append(tl)

    for _ in range(2):
        with pytest.raises(KernelError, match="ValueError: no"):
            one_pe.run(fails)
    one_pe.launch(one_pe.engine_of(), runs, *PES)
    assert len(ran) == len(PES)


def test_a_program_that_has_ended_keeps_nothing():
    class Thing:
        pass

    def launched():
        thing = Thing()
        one_pe.run(lambda tl: thing)
        return weakref.ref(thing)

    gone = launched()
    gc.collect()
    assert gone() is None


def test_threads_have_programs_of_their_own():
    one_pe.run(lambda tl: None)
    ran = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: one_pe.run(lambda tl: ran.append(threading.get_ident())))
        thread.start()
        thread.join()
    one_pe.run(lambda tl: ran.append(threading.get_ident()))
    assert len(ran) == 3
    assert ran[2] == threading.get_ident()
