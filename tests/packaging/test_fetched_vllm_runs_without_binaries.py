"""The folders that `make upstream-source` fetches are releases of vLLM, whole but for binaries.

If this breaks, `make test-vllm033` runs another release, or runs binaries for a GPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
from upstream_sources import FETCHED_TAGS, source

REPOSITORY = Path(__file__).parents[2]


def is_kept(name: str) -> bool:
    path = REPOSITORY / "packaging" / "fetch_vllm_source.py"
    spec = importlib.util.spec_from_file_location("fetch_vllm_source", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.is_kept(name)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("vllm/version.py", True),
        ("vllm/model_executor/layers/fused_moe/configs/E=128.json", True),
        ("vllm/transformers_utils/chat_templates/template.jinja", True),
        ("vllm-0.33.0.dist-info/METADATA", True),
        ("vllm-0.33.0.dist-info/entry_points.txt", True),
        ("vllm/_C_stable_libtorch.abi3.so", False),
        ("vllm/vllm-rs", False),
        ("vllm/third_party/deep_gemm/include/cute/tensor.hpp", False),
    ],
)
def test_code_and_data_are_kept(name, kept):
    assert is_kept(name) == kept


@pytest.mark.parametrize("tag", FETCHED_TAGS)
def test_the_folder_is_the_release_without_libraries(tag):
    folder = source(tag)
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(folder)])
    assert found.version == tag
    assert (folder / "vllm" / "__init__.py").is_file()
    assert list(folder.rglob("*.so")) == []
