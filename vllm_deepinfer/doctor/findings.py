"""What a check found: one sentence, how bad it is and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

# The check that vLLM and the platform take the options.
CONFIGURATION = "configuration"


class Level(StrEnum):
    """How bad a finding is; see `Finding.is_in_the_way` for what makes the command fail."""

    ERROR = "error"
    WARNING = "warning"
    NOT_CHECKED = "not_checked"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One result of one check.

    check: name of the check, stable across releases.
    message: what is wrong, with the values, in one sentence.
    fix: what to change, in one sentence; empty if there is nothing to change.
    """

    check: str
    level: Level
    message: str
    fix: str = ""

    @property
    def is_in_the_way(self) -> bool:
        """Whether the command fails: by an error, or where nobody judged the options at all."""
        judged_nothing = self.check == CONFIGURATION and self.level is Level.NOT_CHECKED
        return self.level is Level.ERROR or judged_nothing

    def as_json(self) -> dict[str, str]:
        return {**asdict(self), "level": self.level.value}


def error(check: str, message: str, fix: str = "") -> Finding:
    return Finding(check, Level.ERROR, message, fix)


def warning(check: str, message: str, fix: str = "") -> Finding:
    return Finding(check, Level.WARNING, message, fix)


def not_checked(check: str, message: str, fix: str = "") -> Finding:
    return Finding(check, Level.NOT_CHECKED, message, fix)


def note(check: str, message: str, fix: str = "") -> Finding:
    return Finding(check, Level.NOTE, message, fix)
