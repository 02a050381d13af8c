"""The four panels of the attention study at validation scale: how many commands of each kind they take.

| panel | ranks | what travels |
|---|---|---|
| single_user_prefill | the PEs of a cube, a ring | K/V tiles |
| multi_user_prefill | one PE of each of several cubes, an open chain; other users have the other PEs | K/V tiles |
| single_user_decode | the PEs of a cube | parts (m, l, o), merged by log-sum-exp |
| multi_user_decode | one PE of each of several cubes | parts (m, l, o), merged by log-sum-exp |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.analysis.records import CommandInfo
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.gqa_run import Setting, start

FILE = "sweep.json"
VERSION = 1
PANELS = ("single_user_prefill", "multi_user_prefill", "single_user_decode", "multi_user_decode")
CONFIG = {
    "S_q_prefill": 16, "S_kv_per_rank": 16, "h_q": 1, "h_kv": 1, "d_head": 64, "n_ranks_single_user": 8,
    "n_ranks_multi_user": 4,
}  # fmt: skip
# Counter of the summary: names of commands.
COUNTED = {
    "gemm_count": ("dot", "gemm"), "ipcq_send_count": ("send",), "ipcq_recv_count": ("recv",),
    "dma_read_count": ("load",), "dma_write_count": ("store",),
}  # fmt: skip


def setting_of(panel: str, config: dict[str, int]) -> Setting:
    """Return what a panel runs."""
    users, phase = panel.removesuffix("_prefill").removesuffix("_decode"), panel.rpartition("_")[2]
    single = users == "single_user"
    ranks = config[f"n_ranks_{users}"]
    return Setting(
        phase,
        ranks,
        "pe" if single else "cube",
        cubes=1 if single else ranks,
        pes=ranks if single else 1,
        items=config["h_kv"],
        group=config["h_q"] // config["h_kv"],
        head_dim=config["d_head"],
        tokens=config["S_kv_per_rank"],
        ring=single,
    )


def op_log_summary(commands: Sequence[CommandInfo]) -> dict[str, int]:
    """Return how many of the commands are of each kind; those of programs count."""
    names = Counter(command.name for command in commands if command.pe >= 0)
    return {key: sum(names[name] for name in wanted) for key, wanted in COUNTED.items()}


def validate(torch: RuntimeContext) -> list[dict[str, Any]]:
    """Run the panels at validation scale, with data compared with numpy; return a row for each."""
    rows, seen = [], len(torch.engine.records().commands)
    for panel in PANELS:
        setting = setting_of(panel, CONFIG)
        start(torch, setting)()
        commands = torch.engine.records().commands
        rows.append({"panel": panel, "n_ranks": setting.ranks, "op_log_summary": op_log_summary(commands[seen:])})
        seen = len(commands)
    return rows


def write(torch: RuntimeContext, folder: Path) -> Path:
    """Run the panels at validation scale and write `sweep.json`; return its path."""
    content = {
        "version": VERSION,
        "validation_scale": True,
        "panels": list(PANELS),
        "config": CONFIG,
        "rows": validate(torch),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
    return path
