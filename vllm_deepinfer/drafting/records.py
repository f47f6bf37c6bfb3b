"""What became of draft blocks: the records a calibration is fitted on.

One JSON object per line and draft block::

    {"confidence_logits": [2.1, 0.3, -0.7], "offered": 3, "accepted": 1, "request_id": "a"}

``confidence_logits`` are the raw logits of all K positions, before any temperature. ``offered``
drafts, the first ones, were verified and ``accepted`` of them survived. ``request_id`` may be
missing. A block whose acceptance was cut by the end of its request says nothing about the draft
after the cut: count only the drafts before it as offered.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

EXPECTED = (
    'expected {"confidence_logits": [one number per position], "offered": n, "accepted": m} with '
    '0 <= m <= n <= positions, optionally "request_id": string'
)
_KEYS = {"confidence_logits", "offered", "accepted", "request_id"}
# No confidence head comes near it, and sums of what is below it do not overflow.
MAX_ABS_RECORDED_LOGIT = 1e6


class RecordError(ValueError):
    """A line is not the record of a draft block."""


@dataclass(frozen=True)
class DraftRecords:
    """N blocks of K drafts.

    Args:
        logits: raw confidence logits, float64 ``[N, K]``.
        offered: drafts verified, int64 ``[N]``, 0 to K.
        accepted: drafts that survived, int64 ``[N]``, 0 to ``offered``.
    """

    logits: np.ndarray
    offered: np.ndarray
    accepted: np.ndarray

    def __len__(self) -> int:
        return len(self.offered)

    @property
    def block_size(self) -> int:
        return self.logits.shape[1]


def read_records(lines: Iterable[bytes]) -> DraftRecords:
    """Read records line by line; only their numbers are kept.

    Raises:
        RecordError: a line is not a record, or has another number of positions than the first; or
            there is no line.
    """
    logits, offered, accepted = array("d"), array("q"), array("q")
    block_size = 0
    for number, line in enumerate(lines, start=1):
        try:
            record = _parse(line)
            block_size = block_size or len(record["confidence_logits"])
            _check(record, block_size)
        except RecordError as error:
            raise RecordError(f"line {number}: {error}; {EXPECTED}.") from error
        logits.extend(record["confidence_logits"])
        offered.append(record["offered"])
        accepted.append(record["accepted"])
    if not offered:
        raise RecordError(f"there are no lines; {EXPECTED}.")
    return DraftRecords(
        np.frombuffer(logits).reshape(len(offered), block_size),
        np.frombuffer(offered, dtype=np.int64),
        np.frombuffer(accepted, dtype=np.int64),
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RecordError(f"a JSON {type(record).__name__}, not an object")
    missing = sorted(_KEYS - {"request_id"} - set(record))
    unknown = sorted(set(record) - _KEYS)
    if missing or unknown:
        raise RecordError(f"missing {missing}, unknown {unknown}")
    if not isinstance(record.get("request_id", ""), str):
        raise RecordError(f"request_id={record['request_id']!r} is not a string")
    return record


def _check(record: dict[str, Any], block_size: int) -> None:
    logits = record["confidence_logits"]
    if not isinstance(logits, list) or not logits:
        raise RecordError(f"confidence_logits={logits!r} is not a list of numbers")
    for position, logit in enumerate(logits):
        if not _is_logit(logit):
            raise RecordError(
                f"confidence_logits[{position}]={logit!r} is not a number within "
                f"+-{MAX_ABS_RECORDED_LOGIT:g}"
            )
    if len(logits) != block_size:
        raise RecordError(
            f"{len(logits)} confidence_logits where the first line has {block_size}; records of "
            f"different num_speculative_tokens cannot be fitted together"
        )
    for name, most in (("offered", block_size), ("accepted", record["offered"])):
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise RecordError(f"{name}={value!r} is not an integer from 0 to {most}")


def _is_logit(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= MAX_ABS_RECORDED_LOGIT  # false for NaN
