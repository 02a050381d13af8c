"""Generated requests, and traces, good and bad."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kernbench.errors import ArgumentError, ConfigError, MissingFileError
from kernbench.serving import generate, read_trace, run
from tests.serving.cases import constant, requests

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]}


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness):
    table = generate(20_000, request_rate=50, input_len=10, output_len=5, burstiness=burstiness, seed=1)
    gaps = np.diff(table["arrival_s"])
    deviation = 1 / np.sqrt(burstiness)  # of a gamma distribution, relative to its mean
    assert gaps.mean() == pytest.approx(1 / 50, rel=4 * deviation / np.sqrt(20_000))
    assert gaps.std() / gaps.mean() == pytest.approx(deviation, rel=0.05)


def test_lengths_are_fixed_or_lognormal():
    table = generate(20_000, request_rate=1, input_len=300, output_len=(200, 0.5), seed=2)
    assert (table["input_len"] == 300).all()
    logs = np.log(table["output_len"])
    assert np.median(table["output_len"]) == pytest.approx(200, rel=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.03)


def test_a_seed_decides_the_requests():
    first, same, other = (generate(50, request_rate=1, input_len=10, output_len=(9, 1), seed=s) for s in (1, 1, 2))
    assert first.equals(same)
    assert not first.equals(other)


def test_at_an_infinite_rate_all_arrive_at_once():
    assert (generate(5, request_rate=float("inf"), input_len=10, output_len=5)["arrival_s"] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n = 0 must be an integer of at least 1"),
        ({"request_rate": 0}, "request_rate = 0 must be above 0"),
        ({"burstiness": 0}, "burstiness = 0 must be a finite number above 0"),
        ({"input_len": 0}, "input_len = 0 must be a number of tokens from 1, or"),
        ({"output_len": (5, -1)}, r"output_len = \(5, -1\) must be"),
        ({"output_len": (5, 1, 1)}, r"output_len = \(5, 1, 1\) must be"),
    ],
)
def test_impossible_arguments_are_refused(change, message):
    with pytest.raises(ArgumentError, match=message):
        generate(**{"n": 5, "request_rate": 1, "input_len": 10, "output_len": 5, **change})


@pytest.mark.parametrize(
    "text",
    [
        AZURE + "2023-11-16 18:17:04.0000000,4808,10\n2023-11-16 18:17:03.9799600,3180,8\n",
        "# a comment\narrival_s,ContextTokens,GeneratedTokens\n0.02004,4808,10\n\n0,3180,8\n",
    ],
)
def test_a_trace_of_azure_is_read_in_order_of_arrival(tmp_path, text):
    (tmp_path / "trace.csv").write_text(text)
    table = read_trace(tmp_path / "trace.csv")
    assert table["arrival_s"].tolist() == pytest.approx([0, 0.02004], abs=1e-6)
    assert table["input_len"].tolist() == [3180, 4808]
    assert table["output_len"].tolist() == [8, 10]


def test_a_trace_of_mooncake_is_read_with_its_hashes(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps({**MOONCAKE, "timestamp": at}) for at in (3000, 1000)) + "\n")
    table = read_trace(path)
    assert table["arrival_s"].tolist() == [0, 2]
    assert table["hash_ids"].tolist() == [[3, 4], [3, 4]]
    assert run(table, constant).table["cached_tokens"].tolist() == [0, 592]  # all full blocks of 16 but the last tokens


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("", 1, "file", "has no request; pass a CSV with the header TIMESTAMP"),
        (AZURE, 1, "file", "has no request"),
        ("time,ContextTokens,GeneratedTokens\n0,1,1\n", 1, "header", "has no column arrival_s"),
        (AZURE + "0,10,1\n1,10\n", 3, "cells", "must be 3, as in the header; complete the line"),
        (AZURE + "noon,10,1\n", 2, "TIMESTAMP", "'noon' must be seconds or a date and time; correct it"),
        (AZURE + "-1,10,1\n", 2, "TIMESTAMP", "must be seconds"),
        (
            AZURE + "0,ten,1\n",
            2,
            "ContextTokens",
            "'ten' must be an integer of at least 1; correct it or remove the line",
        ),
        (AZURE + "0,10,0\n", 2, "GeneratedTokens", "must be an integer of at least 1"),
        ('{"timestamp": 0\n', 1, "line", "must be a JSON object"),
        (json.dumps({**MOONCAKE, "output_length": 0}), 1, "output_length", "0 must be an integer of at least 1"),
        (json.dumps({**MOONCAKE, "output_length": 1.5}), 1, "output_length", "1.5 must be an integer of at least 1"),
        (json.dumps({**MOONCAKE, "timestamp": "0"}), 1, "timestamp", "'0' must be a number of ms from 0"),
        (json.dumps({**MOONCAKE, "hash_ids": [1, -1]}), 1, "hash_ids", "must be a list of integers from 0"),
        ('{"timestamp": 0, "input_len": 5, "output_length": 1}', 1, "input_length", "did you mean input_len"),
    ],
)
def test_a_bad_trace_is_one_error_with_file_line_key_and_remedy(tmp_path, text, line, key, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_trace(path)
    (fault,), (record,) = error.value.faults, error.value.records
    assert fault.startswith(f"{path}: line {line}: {key}")
    assert message in fault
    assert (record["file"], record["line"], record["key"]) == (str(path), line, key)
    assert record["remedy"] in fault


def test_all_faults_of_a_trace_are_reported_at_once_up_to_ten(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "0,0,0\n" * 20)
    with pytest.raises(ConfigError) as error:
        read_trace(path)
    assert len(error.value.faults) == 10


def test_a_trace_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"none\.csv: cannot be read"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("arrival_s", -1.0, "row 1: arrival_s = .* must be a finite number of seconds from 0"),
        ("arrival_s", float("nan"), "row 1: arrival_s"),
        ("input_len", 0, "row 1: input_len = .* must be an integer of at least 1"),
        ("output_len", 1.5, "row 1: output_len"),
        ("output_len", "two", "row 0: output_len"),  # the whole column is text
    ],
)
def test_an_impossible_value_of_a_table_is_named(name, value, message):
    table = requests((0, 10, 1), (1, 10, 1)).astype({name: object})
    table.loc[1, name] = value
    table[name] = table[name].infer_objects()
    with pytest.raises(ArgumentError, match=message):
        run(table, constant)


def test_a_table_without_a_column_or_a_row_is_refused():
    table = requests((0, 10, 1))
    with pytest.raises(ArgumentError, match="column output_len is missing; pass a DataFrame with arrival_s"):
        run(table.drop(columns="output_len"), constant)
    with pytest.raises(ArgumentError, match="the table is empty"):
        run(table[:0], constant)
