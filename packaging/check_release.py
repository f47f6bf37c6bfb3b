"""What a release of vLLM has not that this package relies on, before anybody installs it.

    python packaging/check_release.py 0.34.0

Its Python code is fetched into .cache, unless it is there already, and compared with the contract,
the runner's kernels and the table of releases. Ends with 1 if something is not as expected.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fetch_vllm_source import fetch

from vllm_deepinfer.contract.release_check import check_release, is_in_table
from vllm_deepinfer.contract.releases import ContractError, parse_version

CACHE = Path(__file__).parents[1] / ".cache"


def main(arguments: list[str], cache: Path = CACHE) -> int:
    """Prints a line for each problem; gives the number to end with.

    Args:
        arguments: the release, "0.34.0".
        cache: where its source is, as `vllm-0.34.0-src`, or is put.
    """
    if len(arguments) != 1:
        print("Name a release: make check-release VERSION=0.34.0", file=sys.stderr)
        return 2
    (tag,) = arguments
    try:
        version = parse_version(tag)
        folder = cache / f"vllm-{tag}-src"
        if not (folder / "vllm").is_dir():
            fetch(tag, folder)
    except (ContractError, subprocess.CalledProcessError) as problem:
        print(f"vLLM {tag} cannot be checked: {problem}", file=sys.stderr)
        return 2
    problems = check_release(folder, version)
    for problem in problems:
        print(problem)
    known = "in" if is_in_table(version) else "not in"
    verdict = f"{len(problems)} things are not as expected" if problems else "all is as expected"
    print(f"vLLM {tag}, {known} the table of releases: {verdict}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
