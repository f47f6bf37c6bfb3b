"""The error that a sub-command reports to its user."""

from __future__ import annotations


class CommandError(Exception):
    """Why a sub-command cannot do its work, in one sentence for its user."""
