"""Real commands on a real file system that is full, or cannot be written: one line, and what was there stays whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from tests.repo import ROOT
from tests.slow import slow_after

SMALL = ["--topology", "preset:small"]
RUN = ["run", *SMALL, "--bench", "gemm-single-pe"]
PLAN = "machine: preset:small\nstudy: gemm\naxes: {m: [32, 64], k: [32, 64, 96]}\nparameters: {n: 64}\n"


@contextlib.contextmanager
def file_system(folder, *options):
    """Mount a small file system in memory, which only root may do."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", folder], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def disk(tmp_path):
    if sys.platform != "linux":
        pytest.skip("mounts of Linux")
    with file_system(tmp_path / "disk", "size=400k") as folder:
        yield folder


def command(args, folder, cache="off"):
    return subprocess.run(
        [sys.executable, "-m", "kernbench", *args], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERNBENCH_CACHE": str(cache)},
    )  # fmt: skip


def fill(disk):
    """Write until nothing more fits."""
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(filler, bytes(4096)):
            pass
    os.close(filler)


def errors(done) -> list[str]:
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


SHOW = ["show", "preset:small", "--out"]


@pytest.mark.parametrize(
    "args",
    slow_after(
        1,
        [
            [*RUN, "--save", "run.npz"],
            [*RUN, "--html", "run.html"],
            [*RUN, "--trace", "run.json"],
            [*SHOW, "machine.svg"],
            [*SHOW, "machine.png"],
        ],
    ),
    ids=["save", "html", "trace", "svg", "png"],
)
def test_a_result_on_a_full_disk(disk, args):
    whole = command(args, disk)
    assert whole.returncode == 0, whole.stderr
    path = disk / args[-1]
    before = path.read_bytes()
    fill(disk)
    done = command(args, disk)
    assert done.returncode == 1
    (line,) = errors(done)
    assert args[-1] in line
    assert "No space left" in line
    assert path.read_bytes() == before
    assert sorted(p.name for p in disk.iterdir()) == sorted([args[-1], "filler"])


@pytest.mark.slow
def test_a_new_folder_on_a_full_disk_can_be_made_when_there_is_room(disk):
    fill(disk)
    done = command(["new", "lab"], disk)
    assert done.returncode == 1
    (line,) = errors(done)
    assert "No space left" in line
    assert not list((disk / "lab").iterdir())
    (disk / "filler").unlink()
    assert command(["new", "lab"], disk).returncode == 0


@pytest.mark.slow
def test_a_sweep_on_a_full_disk_goes_on_when_there_is_room(disk):
    (disk / "plan.yaml").write_text(PLAN)
    fill(disk)
    done = command(["sweep", "plan.yaml", "--workers", "1"], disk)
    assert done.returncode == 1
    (line,) = errors(done)
    assert "No space left" in line
    assert not list(disk.rglob("*.part"))
    (disk / "filler").unlink()
    again = command(["sweep", "plan.yaml", "--workers", "1"], disk)
    assert again.returncode == 0, again.stderr
    assert "6 ok" in again.stdout.replace("points: ", "")


@pytest.mark.slow
def test_a_cache_on_a_full_disk_costs_no_result(disk, tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    fill(disk)
    done = command(["sweep", "plan.yaml", "--workers", "1"], tmp_path, cache=disk / "cache")
    assert done.returncode == 0, done.stderr
    assert "the cache of points is passed over" in done.stderr
    assert done.stderr.count("is passed over") == 1


@pytest.mark.parametrize(
    "args",
    slow_after(1, [[*RUN, "--save", "run.npz"], [*RUN, "--trace", "run.json"], ["sweep", "plan.yaml"], ["new", "lab"]]),
    ids=["save", "trace", "sweep", "new"],
)
def test_a_folder_that_cannot_be_written(disk, args):
    (disk / "plan.yaml").write_text(PLAN)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = command(args, disk)
    assert done.returncode == 1
    (line,) = errors(done)
    assert "Read-only file system" in line
    assert [p.name for p in disk.iterdir()] == ["plan.yaml"]
