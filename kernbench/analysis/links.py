"""How busy links were."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernbench.analysis.records import LinkTable


def shares(links: LinkTable, span_ps: int) -> dict[str, float]:
    """Return the share of `span_ps` that each link was busy, for links that were at all."""
    busy = zip(links.names, links.busy_ps.tolist(), strict=True)
    return {name: ps / span_ps for name, ps in busy if ps} if span_ps else {}


def hottest(share: Mapping[str, float]) -> str:
    """Return the link that was busy longest, the first by name (numbers as numbers) of several."""
    return min(share, key=lambda name: (-share[name], _natural(name)))


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
