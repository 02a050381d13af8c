"""Real processes: interrupts at random moments, seeds of Python's hashes, and every Python on the path."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from kernbench.config import default_ccl_path
from tests.fuzz.report import Report
from tests.repo import ROOT

SMALL = ["--topology", "preset:small"]
COMMANDS = (
    ["list"],
    ["run", *SMALL, "--bench", "gemm-single-pe", "--verify-data"],
    ["run", *SMALL, "--bench", "gemm-single-pe", "--json", "--save", "run.npz"],
    ["probe", *SMALL, "--case", "next-cube-read"],
    ["validate", str(ROOT / "topology.yaml"), str(default_ccl_path())],
    ["cache"],
    ["sweep", "plan.yaml", "--no-cache"],
)
PLAN = "machine: preset:small\nstudy: gemm\naxes: {m: [32, 64, 96, 128], k: [32, 64, 96]}\nparameters: {n: 64}\n"
DIGEST = """
import kernbench as kb
from kernbench.benches.registry import run
for name in ("gemm-single-pe", "va-offset-verify"):
    print(run(name, "preset:small", data=True, log="tile").result.records.digest())
with kb.session(kb.load(), data=True) as torch:
    def program(rank):
        torch.distributed.init_process_group("ahbm")
        x = torch.full((1000,), rank, dtype=torch.float16, device="ahbm")
        torch.distributed.all_reduce(x)
    torch.multiprocessing.spawn(program, nprocs=2)
print(torch.result.records.digest())
"""


LONGEST_S = 120  # on a busy host; a whole command takes a few
# The bar of a sweep, which an interrupt leaves where it is.
PROGRESS = re.compile(r"sweep: +\d+%\|")
ELSEWHERE = [x for part in ("files", "kernels", "hostile", "collectives", "damage") for x in ("--only", part)]


def requirements() -> list[str]:
    """Return what the package needs to run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return list(project["dependencies"])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **more}


def start(args: list[str], folder: Path) -> subprocess.Popen[str]:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # the process would inherit that it is ignored
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "kernbench", *args], cwd=folder,
            env=environment(KERNBENCH_CACHE=str(folder / "cache")), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)


def run_interrupts(seeds: range, folder: Path) -> Report:
    """Interrupt a command at a random moment: one line or JSON, nothing half written, no process left behind."""
    report = Report("interrupts at random moments")
    seconds = {}
    for i, command in enumerate(COMMANDS):
        here = _lab(folder / f"whole{i}")
        begin = time.monotonic()
        _, err = start(command, here).communicate(timeout=120)
        seconds[i] = time.monotonic() - begin
        if "error" in err:
            report.failed("-", f"{command} without an interrupt: {err[-300:]}")
    for seed in seeds:
        chosen = random.Random(seed)
        which = chosen.randrange(len(COMMANDS))
        here = _lab(folder / f"cut{seed}")
        report.tried += 1
        process = start(COMMANDS[which], here)
        time.sleep(chosen.random() * seconds[which])
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            report.failed(seed, f"{COMMANDS[which]} still runs {LONGEST_S} s after an interrupt")
            continue
        lines = [line for line in err.splitlines() if line.strip() and not PROGRESS.match(line)]
        if '"message": "interrupted"' in out:  # with --json
            lines.append("error: interrupted")
        if "KeyboardInterrupt" in err and f'"{ROOT / "kernbench"}' not in err:
            report.count("before the package's first line")
            continue
        # A process that had not begun its work, or had ended it, has nothing to say; Python ends without its handlers.
        silent = process.returncode == 0 or (process.returncode == -signal.SIGINT and not lines)
        is_clean = silent or (process.returncode == 1 and len(lines) == 1 and lines[0].startswith("error: interrupted"))
        if process.returncode == 1:
            report.count("told in a line")
        shown = [line for line in lines if "Error" in line or "Traceback" in line or "ignored in" in line]
        if not is_clean or shown:
            report.failed(seed, f"{COMMANDS[which]}: status {process.returncode}: {' | '.join(lines[-4:])[:400]}")
        parts = [path.name for path in here.rglob("*.part")]
        if parts:
            report.failed(seed, f"{COMMANDS[which]} left {parts}")
    return report


def _lab(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text(PLAN)
    return folder


def run_hash_seeds(seeds: range, _folder: Path) -> Report:
    """Run the same programs with other seeds of Python's hashes: the digests of all times are equal."""
    report = Report("seeds of Python's hashes")
    first = ""
    for seed in seeds:
        report.tried += 1
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment(PYTHONHASHSEED=str(seed)), cwd=ROOT, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        first = first or done.stdout
        if done.returncode or done.stdout != first:
            report.failed(seed, f"other times: {done.stdout[:200]} {done.stderr[-300:]}")
    return report


def run_pythons(seeds: range, folder: Path) -> Report:
    """Install the package for each other Python of the path, 3.11 to 3.13, and run a short campaign there."""
    report = Report("other versions of Python")
    for minor in (11, 12, 13):
        found = shutil.which(f"python3.{minor}")
        if found is None or sys.version_info[1] == minor:
            continue
        home = folder / f"python3.{minor}"
        # The definition: a core is built for one version only.
        env = environment(KERNBENCH_ENGINE="definition")
        python = str(home / "bin" / "python")
        steps = (
            [found, "-m", "venv", str(home)],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements()],
            [python, "-m", "tests.fuzz", "--scale", "0.05", "--seed", str(seeds.start), "--json", *ELSEWHERE],
        )
        if subprocess.run([found, "-c", "import venv"], check=False, capture_output=True).returncode:
            continue
        for step in steps:
            done = subprocess.run(step, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
            if step is not steps[-1] and done.returncode:
                report.failed(f"3.{minor}", f"{' '.join(step[-3:])}: {done.stderr[-300:]}")
                break
        else:
            parts = json.loads(done.stdout or "[]")
            report.tried += sum(part["tried"] for part in parts)
            report.notes[f"3.{minor}"] = sum(part["tried"] for part in parts)
            for part in parts:
                report.failures += [f"Python 3.{minor}: {line}" for line in part["failures"]]
            if not parts:
                report.failed(f"3.{minor}", done.stderr[-300:])
    return report
