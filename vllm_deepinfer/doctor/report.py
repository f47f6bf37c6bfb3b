"""The document of `diagnose` as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_MARKS = {"error": "ERROR", "warning": "warning", "not_checked": "not checked", "note": "note"}


def text(document: Mapping[str, Any]) -> str:
    """What a person reads: facts first, findings and the verdict last."""
    parts = [_machine(document), _versions(document)]
    model = document["model"]
    if model is not None and "checkpoint" in model:
        parts.append(_checkpoint(model))
    if model is not None and "features" in model:
        parts.append(_model(model))
    if document["vllm_warnings"]:
        parts.append(_block("vLLM warns", document["vllm_warnings"]))
    parts.append(_findings(document))
    return "\n".join(line for part in parts for line in part)


def _block(title: str, lines: Any) -> Iterator[str]:
    yield title
    for line in lines:
        yield f"  {line}"
    yield ""


def _machine(document: Mapping[str, Any]) -> Iterator[str]:
    platform = document["platform"]
    built = ", ".join(f"{name} {state}" for name, state in document["extensions"].items())
    kernels = f"; kernels use {document['kernels']}" if document["kernels"] else ""
    lines = [
        f"platform: {platform['name'] or 'none'} ({platform['reason']})",
        f"class in force: {platform['in_force'] or 'not known'}",
        f"options are checked for: {platform['checked'] or 'no platform'}",
        f"platform plugins: {', '.join(document['platform_plugins']) or 'none'}",
        f"C++ extensions: {built}{kernels}",
    ]
    return _block(f"vllm-deepinfer {document['package']}", lines)


def _versions(document: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (name, pair["found"] or "-", pair["tested"] or "-")
        for name, pair in document["versions"].items()
    ]
    return _table("versions", ("", "found", "tested"), rows)


def _checkpoint(model: Mapping[str, Any]) -> Iterator[str]:
    parts = ("experts", "engram", "drafts", "vision", "other", "total")
    sizes = tuple(_size(model["checkpoint"][f"{part}_bytes"]) for part in parts)
    headings = ("experts", "engram tables", "drafts", "vision", "other", "total")
    return _table(f"checkpoint of {model['model']}", headings, [sizes])


def _model(model: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (row["name"], "on" if row["is_on"] else "off", row["detail"]) for row in model["features"]
    ]
    yield from _table("features", ("", "", ""), rows)
    yield from _block("options refused on this platform", (_limit(row) for row in model["limits"]))
    yield from _block("graphs", _graphs(model["graphs"]))
    engram = model["engram"]
    lines = [f"{_size(engram['tables_bytes'])} a copy, in {engram['place']}"]
    yield from _block("engram tables", lines)
    if model["memory"] is not None:
        yield from _memory(model["memory"])


def _limit(row: Mapping[str, Any]) -> str:
    allowed = ", ".join("unset" if value is None else str(value) for value in row["allowed"])
    return f"{row['flag']} other than {allowed}: {row['why']}"


def _graphs(graphs: Mapping[str, Any]) -> Iterator[str]:
    def sizes(values: Any) -> str:
        return ", ".join(map(str, values)) if values else "none"

    yield f"mode {graphs['mode']}, captured sizes in tokens: {sizes(graphs['with_drafts_tokens'])}"
    if graphs["without_drafts_tokens"] is not None:
        yield f"without drafting: {sizes(graphs['without_drafts_tokens'])}"
    yield f"largest decode step: {graphs['largest_decode_tokens']} tokens"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    headings = ("rank", "experts", "engram tables", "drafts", "other", "total")
    rows = [
        (
            str(number),
            *(
                _size(rank[f"{part}_bytes"])
                for part in ("experts", "engram", "drafts", "other", "total")
            ),
        )
        for number, rank in enumerate(memory["ranks"])
    ]
    yield from _table("weights", headings, rows)
    caches = [
        (
            cache["kind"],
            str(cache["num_layers"]),
            str(cache["row_bytes"]),
            str(cache["tokens_per_row"]),
            f"{cache['bytes_per_token']:g}",
            "all tokens" if cache["kept_tokens"] is None else f"last {cache['kept_tokens']} tokens",
        )
        for cache in memory["kv_caches"]
    ]
    headings = ("kind", "layers", "row bytes", "tokens per row", "bytes per token", "kept")
    yield from _table("KV caches of one rank", headings, caches)
    yield from _block("KV pool of one rank", _pool(memory["kv_pool"]))


def _pool(pool: Mapping[str, Any]) -> Iterator[str]:
    yield f"a request of full length takes {_size(pool['full_request_bytes'])}"
    if pool["size_bytes"] is None:
        yield "size: found out at the start; give --kv-cache-memory-bytes to see what fits"
        return
    if pool["problem"] is not None:
        yield f"size: {_size(pool['size_bytes'])}, too little"
        return
    yield (
        f"{_size(pool['size_bytes'])}: {pool['num_blocks']} blocks of {pool['block_bytes']} bytes, "
        f"{pool['num_tokens']} tokens, {pool['num_full_requests']:.1f} requests of full length"
    )


def _size(num_bytes: float) -> str:
    """Such as "466.95 GiB", in the largest unit that leaves at least one."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def _table(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    table = [headings, *rows] if any(headings) else rows
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
    return _block(title, lines)


def _findings(document: Mapping[str, Any]) -> Iterator[str]:
    found = document["findings"]
    for finding in found:
        yield f"{_MARKS[finding['level']]}: {finding['check']}: {finding['message']}"
        if finding["fix"]:
            yield f"  {finding['fix']}"
    levels = Counter(finding["level"] for finding in found)
    if found:
        yield ""
    if document["ok"]:
        yield f"no error found; not checked: {levels['not_checked']}"
    elif levels["error"]:
        yield f"{levels['error']} error(s): this cannot serve"
    else:
        yield "no error found, but the options were not checked: whether this serves is not known"
