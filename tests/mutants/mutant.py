"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In ``file``, the one place that reads ``old`` becomes ``new``; ``tests`` must fail."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.old.strip()} -> {self.new.strip()}"
