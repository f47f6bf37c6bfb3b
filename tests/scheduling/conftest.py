"""Stand-in engines with a vote or adaptive verification."""

from drafting.conftest import stand_ins  # noqa: F401
