"""A benchmark's result for people."""

from __future__ import annotations

from typing import Any

_ROW = "{:<26} {:>18} {:>18} {:>8}"
_PART_ROW = "  {:<8} {:<24} {:>9} {:>7}"


def result_table(result: dict[str, Any]) -> str:
    """Machine, then one line per quantity: both engines (spread of their runs) and the ratio."""
    machine, (ours, peer) = result["machine"], result["engines"].items()
    lines = [
        f"{machine['cpu_model']}, {machine['usable_cores']} cores, "
        f"vLLM {machine['versions']['vllm']}, torch {machine['versions']['torch']}, "
        f"{result['settings']['threads']} thread(s)",
        f"load average before each process: {ours[0]} {ours[1]['load_average_before']}, "
        f"{peer[0]} {peer[1]['load_average_before']}",
        "",
        _ROW.format("best (spread of the runs)", ours[0], peer[0], "ratio"),
        _ROW.format("platform", ours[1]["platform"], peer[1]["platform"], ""),
        _ROW.format(
            "parameters", f"{ours[1]['num_parameters']:,}", f"{peer[1]['num_parameters']:,}", ""
        ),
    ]
    ratio = result["ratios_to_peer"]
    for name in ours[1]["tokens_per_s"]:
        values = [_with_spread(engine["tokens_per_s"][name], 1) for _, engine in (ours, peer)]
        lines.append(_ROW.format(f"{name}, tokens/s", *values, f"{ratio[name]:.2f}"))
    for name in ours[1]["start"]:
        values = [_with_spread(engine["start"][name], 1) for _, engine in (ours, peer)]
        lines.append(_ROW.format(name, *values, f"{ratio[name]:.2f}" if name in ratio else ""))
    values = [_with_spread(engine["peak_rss_bytes"], 2, 1 << 30) for _, engine in (ours, peer)]
    lines.append(_ROW.format("peak memory, GiB", *values, f"{ratio['peak_rss_bytes']:.2f}"))
    return "\n".join(lines)


def _with_spread(value: dict[str, Any], digits: int, unit: float = 1) -> str:
    return f"{value['best'] / unit:.{digits}f} ({value['spread']:.0%})"


def profile_tables(result: dict[str, Any]) -> str:
    """Where a step's time goes, one table per measure; empty without a profile."""
    lines: list[str] = []
    for name, engine in result["engines"].items():
        for measure, profile in engine.get("profile", {}).items():
            lines += [
                "",
                f"{name}, {measure}: {profile['step_ms']:.2f} ms a step ({profile['steps']} steps)",
            ]
            for group in profile["groups"]:
                lines.append(_part_row(group["group"], "in all", group))
            lines += [_part_row(part["group"], part["part"], part) for part in profile["parts"]]
    return "\n".join(["", *lines]) if lines else ""


def _part_row(group: str, part: str, entry: dict[str, Any]) -> str:
    return _PART_ROW.format(group, part, f"{entry['ms']:.3f} ms", f"{entry['share']:.1%}")
