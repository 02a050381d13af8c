"""A saved result that is damaged anywhere, cut, or something else: one error with its name, and never a raw one."""

from __future__ import annotations

import io
import json
import random
import zipfile
from itertools import product

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._manifest import UNKNOWN_MANIFEST, digest_of
from kernbench.config._files import MOST_SMALL_ARRAYS
from kernbench.errors import ConfigError
from kernbench.runtime_api.context import session
from tests.fuzz import arrays as changes
from tests.slow import slow_after


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    def add(x, *, tl):
        tl.store(x, tl.load(x, shape=(64,)) + 1)

    with session("preset:small", log="tile") as torch:
        x = torch.zeros(64, device="ahbm")
        torch.launch("add", add, x)
        x.numpy()
    return torch.result.save(tmp_path_factory.mktemp("saved") / "run.npz").read_bytes()


def refused(path) -> str:
    with pytest.raises(ConfigError) as caught:
        kb.read(path)
    (line,) = caught.value.faults
    assert line.startswith(f"{path}: ")
    assert "allow_pickle" not in line
    return line


def test_what_was_saved_is_read(data, tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(data)
    assert kb.read(path).latency_ns > 0


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_changed(data, tmp_path, seed):
    chosen, path, read = random.Random(seed), tmp_path / "run.npz", 0
    told = []
    whole = kb_digest(tmp_path, data)
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(chosen.choice([1, 1, 4, 40])):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        path.write_bytes(changed)
        try:
            found = kb.read(path)
        except ConfigError as error:
            told.append(str(error))
        else:  # the byte was one that nothing depends on, such as a date
            read += 1
            assert found.records.digest() == whole
    assert all(line.startswith(f"{path}: ") for line in told)
    assert read < 50


def kb_digest(tmp_path, data) -> str:
    path = tmp_path / "whole.npz"
    path.write_bytes(data)
    return kb.read(path).records.digest()


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut(data, tmp_path, share):
    path = tmp_path / "run.npz"
    path.write_bytes(data[: int(len(data) * share)])
    assert "is damaged, or no result of kernbench" in refused(path)
    assert "save the result again" in refused(path)


@pytest.mark.parametrize("content", [b"a text\n", b"\x80\x04N.", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00"])
def test_another_file(tmp_path, content):
    path = tmp_path / "run.npz"
    path.write_bytes(content)
    assert "is damaged, or no result of kernbench" in refused(path)


def test_a_file_that_is_not_there(tmp_path):
    assert "cannot be read (No such file or directory)" in refused(tmp_path / "run.npz")
    assert "cannot be read" in refused(tmp_path)


def rewritten(data, path, change):
    """Write a file that is whole, but whose content does not fit."""
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays["meta"].tobytes())
    change(arrays, meta)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez_compressed(path, **arrays)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = UNKNOWN_MANIFEST.comment(digest_of(arrays))
    return path


def drop(name):
    return lambda arrays, meta: (arrays if name in arrays else meta).pop(name)


def put(name, value):
    return lambda arrays, meta: (arrays if name in arrays else meta).update({name: value})


CHANGES = [
    *map(drop, ("start_ps", "kind", "link_nbytes", "schema_version", "components", "commands", "nodes", "launches")),
    put("start_ps", np.zeros(3, np.int64)), put("kind", np.zeros(0, np.int16)), put("command", np.zeros((2, 2), "i4")),
    put("component", np.full(9, 99, np.int32)), put("components", []), put("kinds", ["x"]), put("kinds", 3),
    put("commands", [["a"]]), put("commands", {}), put("launches", [[1]]), put("makespan_ps", None), put("spec", 7),
    put("links", ["a"]), put("more", 1), put("nodes", 4), put("machine", 7), put("engine", None),
    put("component_busy_ps", np.zeros(2, np.int64)), put("launches", [["add", 0, 10**15, 0, ""]]),
    put("start_ps", np.full(9, 1 << 61)), put("link_bw_gbs", np.zeros(9)),
    put("allocation_place", np.full(9, 99, np.int32)), put("allocation_t_ps", np.zeros(1, np.int64)),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_whole_file_whose_content_does_not_fit(data, tmp_path, change):
    path = rewritten(data, tmp_path / "run.npz", change)
    assert "is damaged, or no result of kernbench" in refused(path)


def test_a_file_with_objects_is_not_unpickled(data, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    path = tmp_path / "run.npz"
    np.savez(path, meta=np.array([Bomb()], dtype=object))
    assert zipfile.is_zipfile(path)
    assert "an array holds Python objects" in refused(path)


@pytest.mark.parametrize("name", slow_after(9, changes.names_in(2)))
def test_a_changed_array_is_found_by_the_digest_and_by_what_contradicts_it(tmp_path, name):
    """With a new digest, what is read answers every question, or an error of kernbench says that it cannot."""
    content, digest = changes.saved()[2]
    path, told = tmp_path / "run.npz", []
    for mutation, new_digest in product(random.Random(name).sample(changes.MUTATIONS, 3), (False, True)):
        change = changes.changed(name, mutation, random.Random(name))
        try:
            found = changes.read_changed(content, change, path, new_digest=new_digest)
        except ConfigError as error:
            told.append(str(error))
        else:
            assert new_digest or found.records.digest() == digest
            changes.questions(found)
    assert all(line.startswith(f"{path}: ") for line in told)


@pytest.mark.parametrize("keep", [True, False], ids=["another digest", "no digest"])
def test_arrays_that_are_not_those_of_the_digest_are_refused(data, tmp_path, keep):
    path = tmp_path / "run.npz"
    path.write_bytes(data)
    with zipfile.ZipFile(path) as file:
        comment = file.comment
    with np.load(path) as file:
        arrays = dict(file)
    arrays["nbytes"] = arrays["nbytes"] + 1
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = comment if keep else b""
    assert "its arrays are not those that were saved: their digest differs" in refused(path)


def test_a_machine_that_is_none_is_refused(data, tmp_path):
    def change(arrays, meta):
        meta["spec"]["cube"]["hbm"]["channels"] = 3.5

    path = rewritten(data, tmp_path / "run.npz", change)
    assert "cube.hbm.channels = 3.5 must be a whole number" in refused(path)


@pytest.mark.parametrize(("event", "told"), [(5 << 3, "is of no kind of event"), (5 << 23 | 1, "that there is not")])
def test_a_cause_that_is_no_event_is_refused(data, tmp_path, event, told):
    def change(arrays, meta):
        arrays["causes"] = arrays["causes"].copy()
        arrays["causes"][0, 0] = event

    assert told in refused(rewritten(data, tmp_path / "run.npz", change))


def member(path, content, name="start_ps.npy"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, content)
    return path


def test_more_than_is_read_is_refused_before_it_is_unpacked(tmp_path):
    path = member(tmp_path / "run.npz", bytes(MOST_SMALL_ARRAYS + 1))
    assert f"at most {MOST_SMALL_ARRAYS:,} are read" in refused(path)


def test_a_header_that_asks_for_memory_that_the_file_does_not_hold_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)})
    path = member(tmp_path / "run.npz", header.getvalue() + bytes(64))
    assert f"holds {len(header.getvalue()) + 64:,} bytes, not an array of shape ({1 << 50},)" in refused(path)
    with np.errstate(all="raise"):
        assert "BadZipFile" in refused(member(path, b"", "start_ps.txt")) or "is damaged" in refused(path)
