"""Files that anyone may have written cost little to refuse, and the error names them."""

from __future__ import annotations

import io
import os
import re
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from kernbench.config import read_ccl, read_machine
from kernbench.config._files import MOST_VALUES, MOST_YAML, parse_yaml, read_arrays, read_json, read_text
from kernbench.errors import ConfigError, KernbenchError, quote
from tests.repo import ROOT

NINE = ",".join("1" * 9)


def bomb(levels: int, form: str = "[{}]") -> str:
    lines = ["a0: &a0 {x: 1, y: 2}" if "<<" in form else f"a0: &a0 [{NINE}]"]
    lines += [f"a{i}: &a{i} " + form.format(",".join([f"*a{i - 1}"] * 9)) for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}", "{{k: [{}]}}"])
@pytest.mark.parametrize("read", [read_machine, read_ccl])
def test_aliases_of_aliases_cost_nothing(tmp_path, form, read):
    path = tmp_path / "topology.yaml"
    path.write_text(bomb(9, form), "utf-8")
    assert path.stat().st_size < 600
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(ConfigError) as caught:
            read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value) == (
        f"{path}: line 1, column 1 holds more than 50,000 values, its aliases counted; leave some out"
    )
    assert peak < 10 << 20
    assert time.process_time() - begin < 2


def test_aliases_that_are_few_are_read():
    content, _ = parse_yaml(bomb(4))
    assert content["a3"][8][8][8] == [1] * 9


@pytest.mark.slow
def test_an_override_is_read_with_the_same_bound():
    with pytest.raises(ConfigError, match=r"override: .* has a value that holds more than 50,000 values"):
        read_machine("topology.yaml", [f"sip.cube_mesh=[{','.join('1' * (MOST_VALUES + 1))}]"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [" + "1," * MOST_VALUES + "1]", "column .* holds more than 50,000 values; leave some out"),
        ("# " + "x" * MOST_YAML, "is larger than 1 MiB; give the path of a YAML file"),
    ],
)
def test_a_large_file_is_refused(tmp_path, text, told):
    path = tmp_path / "topology.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=f"topology.yaml: .*{told}"):
        read_machine(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "topology.yaml")
    for path in (tmp_path / "topology.yaml", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match=r"cannot be read .it is not a file.; give the path of a YAML file"):
            read_machine(path)


def test_messages_quote_names_and_values_up_to_a_line(tmp_path):
    long = "x" * 20_000
    for source in (tmp_path / long, f"{tmp_path}/{'y/' * 10_000}z.yaml"):
        with pytest.raises(ConfigError) as caught:
            read_machine(source)
        assert len(str(caught.value)) < 400
    for override in (
        f"{long}=1",
        f"sip.cube_mesh.w={long}",
        f"sip.cube_mesh.w=[{'1, ' * 9999}1]",
        f"cube={long}",
        long,
    ):
        with pytest.raises(ConfigError) as caught:
            read_machine("topology.yaml", [override])
        assert all(len(line) < 600 for line in caught.value.faults)
    assert len(quote(long)) == 80
    assert len(str(KernbenchError(f"{long} {long!r}: is wrong; mend it"))) < 400
    assert str(KernbenchError(f"{long}: is wrong; mend it")).endswith(": is wrong; mend it")


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def saved(array) -> bytes:
    head = io.BytesIO()
    np.save(head, array, allow_pickle=True)
    return head.getvalue()


def header(shape) -> bytes:
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_arrays_are_read_as_numpy_wrote_them(tmp_path):
    given = {"a": np.arange(6).reshape(2, 3), "b": np.asfortranarray(np.eye(3, 2)), "c": np.zeros(0, np.int16)}
    np.savez_compressed(tmp_path / "x.npz", **given)
    found = read_arrays(tmp_path / "x.npz", "file", "")
    for name, array in given.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize(
    "data",
    [
        saved(np.array([object()], dtype=object)), header((10**12,)) + bytes(80), header((-3,)) + bytes(80), b"",
        b"\x93NUMPY", header((10,))[:60], b"\x93NUMPY\x09\x00" + bytes(90),
    ],
)  # fmt: skip
def test_an_array_that_is_none_is_refused(tmp_path, data):
    path = archive(tmp_path / "x.npz", a=data)
    with pytest.raises(ConfigError, match=r"x\.npz: is damaged, or no file of mine .*; make it again"):
        read_arrays(path, "file of mine", "make it again")


@pytest.mark.slow
def test_an_archive_that_swells_is_refused_before_it_does(tmp_path):
    path = archive(tmp_path / "x.npz", a=header((1 << 24,)) + bytes(8 << 24))
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"x\.npz: .* bytes hold arrays of 134,.* bytes"):
            read_arrays(path, "file of mine", "make it again")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul", "[" * 100_000, '{"a": 1e9999'])
def test_json_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json: is damaged, or no file of mine .*; make it again"):
        read_json(path, "file of mine", "make it again")


DIRECT = re.compile(
    r"json\.load\(|json\.loads\([^\n]*read_(text|bytes)|yaml\.(safe_|full_)?load|np\.load|allow_pickle=True"
)


def test_files_have_one_loader():
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (ROOT / "kernbench").rglob("*.py")
    }
    assert [name for name, text in sources.items() if DIRECT.search(text)] == ["kernbench/config/_files.py"]


def test_text_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "x"
    path.write_text("\ufeffabc", "utf-8")
    assert read_text(path, 6, "") == "abc"
    with pytest.raises(ConfigError, match="is larger than 0 MiB"):
        read_text(path, 5, "")
