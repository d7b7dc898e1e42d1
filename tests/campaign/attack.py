"""What an attack returns: cases counted by kind, and the failures with what repeats them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Failure:
    """One case that broke a promise."""

    kind: str
    case: str
    """What repeats the case: the seed and the number of the draw, or the input itself."""
    what: str


@dataclass
class Tally:
    """The cases that one attack tried, counted by kind, and its failures."""

    tried: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    """Figures of the attack other than counts, by name with the unit: `p99_ms`."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Parts that could not be run here, by name, with the reason."""

    def count(self, kind: str, n: int = 1) -> None:
        """Count cases that were tried."""
        self.tried[kind] += n

    def fail(self, kind: str, case: object, what: object) -> None:
        """Note a case that broke a promise."""
        self.failures.append(Failure(kind, str(case), str(what)[:2000]))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "tried": dict(sorted(self.tried.items()))}
