"""Every upstream symbol this package relies on exists, as expected, in every supported release.

Claim: the contract (vllm_deepinfer/contract) is true of the installed vLLM and of the source of the
releases that have no CPU build (`make upstream-source` fetches it; `make test-vllm033` runs the
engine on it). If this breaks, the package fails on a supported vLLM at run time, deep inside the
engine.
"""

from __future__ import annotations

import pytest
from upstream_sources import SOURCES, source, version_of

from vllm_deepinfer.contract import CONTRACT
from vllm_deepinfer.contract.installed import check_at_start, check_loaded
from vllm_deepinfer.contract.kernels import kernel_lines
from vllm_deepinfer.contract.source_reader import check_source
from vllm_deepinfer.contract.symbols import uses


@pytest.mark.parametrize("release", SOURCES)
def test_the_release_keeps_the_contract(release):
    assert check_source(CONTRACT, source(release), version_of(release)) == []


@pytest.mark.parametrize("release", SOURCES)
def test_replaced_kernels_keep_their_parameters(release):
    version = version_of(release)
    assert check_source(kernel_lines(version), source(release), version) == []


def test_start_check_agrees_on_loaded_modules():
    import vllm
    import vllm.engine.arg_utils  # noqa: F401  loads the configuration and the platform

    check_at_start()
    moved = uses("vllm.config.vllm", "NoSuchThing")
    (problem,) = check_loaded([moved], vllm.__version__)
    assert "vllm.config.vllm:NoSuchThing" in problem
