"""What a part of the campaign tried, and what failed, each with the seed that shows it again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """The counts of one part."""

    part: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def failed(self, seed: object, what: str) -> None:
        self.failures.append(f"{self.part}, seed {seed}: {what}")

    def most(self, name: str, value: float) -> None:
        """Note the largest value of something."""
        self.notes[name] = max(value, self.notes.get(name, value))

    def count(self, name: str) -> None:
        self.notes[name] = self.notes.get(name, 0) + 1

    def __str__(self) -> str:
        notes = "".join(f", {name} {value:,.4g}" for name, value in sorted(self.notes.items()))
        return f"{self.part}: {self.tried:,} tried, {len(self.failures)} failed{notes}"
