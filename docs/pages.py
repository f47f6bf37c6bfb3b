"""What the scripts that make pages of docs/ share: tables, and the places they are put in."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first ``texts`` columns are texts, the others numbers."""
    marks = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, marks, *rows])


def rewrite(page: str, name: str, content: str) -> str:
    """The page with what stands between the marks of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    changed, count = pattern.subn(lambda _: f"{begin}\n{content}\n\n{end}", page)
    if count != 1:
        sys.exit(f"the page has {count} places marked {begin.strip()}; it needs one")
    return changed
