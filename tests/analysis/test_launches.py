"""A launch is called what the result lists it as; a collective is a launch on each of its SIPs."""

from __future__ import annotations

import pytest

from kernbench.analysis._launches import calls, chosen_launches, labels
from kernbench.analysis._records import Launch
from kernbench.errors import KernbenchError


def launches(*named):
    return [Launch(name, 10 * i, 10 * i + 10, sip, queues) for i, (name, sip, queues) in enumerate(named)]


def test_the_nth_launch_of_a_name_on_each_sip_is_the_nth_call():
    found = launches(("sum", 0, "q"), ("sum", 1, "q"), ("sum", 0, "q"), ("gemm", 0, ""), ("sum", 1, "q"))
    assert labels(found) == ["sum", "sum", "sum #2", "gemm", "sum #2"]
    assert calls(found)["sum #2"] == [found[2], found[4]]


def test_a_collective_of_another_group_is_another_call():
    found = launches(("sum", 0, "of 0, 1"), ("sum", 1, "of 0, 1"), ("sum", 2, "of 2, 3"), ("sum", 3, "of 2, 3"))
    assert labels(found) == ["sum", "sum", "sum #2", "sum #2"]


def test_no_two_calls_have_one_label():
    found = launches(("sum", 0, ""), ("sum #2", 0, ""), ("sum", 0, ""), ("sum #2", 0, ""))
    assert labels(found) == ["sum", "sum #2", "sum #3", "sum #2 #2"]


def test_a_label_means_the_call_and_a_launch_itself():
    found = launches(("sum", 0, "q"), ("sum", 1, "q"), ("gemm", 0, ""))
    assert chosen_launches(found, "sum") == ("sum", found[:2])
    assert chosen_launches(found, found[1]) == ("sum on sip1", [found[1]])


def test_an_unknown_launch_is_answered_with_those_that_there_are():
    found = launches(("sum", 0, ""), ("sum", 0, ""), ("gemm", 0, ""))
    with pytest.raises(KernbenchError) as error:
        chosen_launches(found, "gem")
    assert str(error.value) == "no launch of this run is 'gem'; did you mean gemm? known: sum, gemm; up to sum #2"
    with pytest.raises(KernbenchError, match=r"no launch of this run is 'gemm on sip3 from 0.50 ns on'; .*known: sum"):
        chosen_launches(found, Launch("gemm", 500, 900, 3))
    with pytest.raises(KernbenchError, match=r"'sum'; it launched nothing$"):
        chosen_launches([], "sum")
