"""A kernel of others is used only where it is installed and right, and for what it takes.

If this fails, a GPU computes with a kernel whose layout of scales is not the one assumed here.
"""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

from vllm_deepinfer.log import get_logger
from vllm_deepinfer.ops import reference_linear
from vllm_deepinfer.ops.triton import vendor as vendors

CPU = torch.device("cpu")
VENDOR = {vendor.operation: vendor for vendor in vendors.VENDORS}
PLAIN = VENDOR["plain_linear"]


def ours(x, weight):
    return reference_linear.plain_linear(x, weight)


def vendor_with(theirs) -> vendors.Vendor:
    return dataclasses.replace(PLAIN, name="a vendor", load=lambda: theirs)


@pytest.fixture
def warnings(caplog, monkeypatch):
    logger = get_logger(vendors.__name__)
    monkeypatch.setattr(logger, "propagate", True)
    for parent in (logger.parent, logging.getLogger("vllm")):
        if parent is not None:
            monkeypatch.setattr(parent, "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= 30]


def test_right_one_is_used_for_what_it_takes():
    def theirs(x, weight):
        return ours(x, weight) + 1e-6

    chosen = vendors.choose(vendor_with(theirs), ours, CPU)
    x, weight = torch.randn(2, 32), torch.randn(3, 32).to(torch.bfloat16)
    assert torch.equal(chosen(x, weight), ours(x, weight))
    x = x.to(torch.bfloat16)
    assert torch.equal(chosen(x, weight), theirs(x, weight))


def raises(x, weight):
    raise TypeError("recipe is not an argument")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (lambda x, weight: 1.01 * ours(x, weight), "differs from the reference by 1.0e-02"),
        (lambda x, weight: ours(x, weight) * float("nan"), "differs"),
        (lambda x, weight: ours(x, weight).t(), "returns [64, 5] instead of [5, 64]"),
        (raises, "recipe is not an argument"),
    ],
    ids=["off", "nan", "shape", "raises"],
)
def test_wrong_one_is_named_and_not_used(theirs, reason, warnings):
    assert vendors.choose(vendor_with(theirs), ours, CPU) is ours
    assert any("a vendor" in message and reason in message for message in warnings())


def test_absent_one_is_not_used():
    def absent():
        raise ImportError("not installed")

    assert vendors.choose(dataclasses.replace(PLAIN, load=absent), ours, CPU) is ours
    assert vendors.choose(VENDOR["fp8_linear"], ours, CPU) is ours  # DeepGEMM, on this machine


@pytest.mark.parametrize("vendor", vendors.VENDORS, ids=lambda vendor: vendor.name)
def test_probe_is_a_case_that_the_vendor_takes(vendor):
    arguments = vendor.probe(CPU)
    assert vendor.fits(*arguments)
    assert vendor.reference(*arguments).isfinite().all()


def test_packed_scales_are_the_bytes_in_order():
    """As vLLM's own quantiser lays them out: strides (1, tokens rounded up to four)."""
    scales = torch.randint(0, 255, (6, 8), dtype=torch.uint8)
    packed = vendors.packed_scales(scales)
    assert packed.stride() == (1, 8)
    assert torch.equal(packed.contiguous().view(torch.uint8), scales)
