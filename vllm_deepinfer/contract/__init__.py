"""Every symbol of vLLM's that this package relies on, and the releases it was tested with.

    CONTRACT           all of it, one line a symbol; a module here for each subject
    symbols            the forms of a line
    releases           the table of releases: what each is, and what it changed
    installed          the check of the vLLM that is installed, at start
    source_reader      the check of a vLLM that is only source text
    kernels            the same for the runner's Triton kernels, which runner_kernels replaces
    release_check      everything that can be read off a release before anybody installs it

Add a line whenever code here starts to call, override, subclass or read something of vLLM's; a test
finds the names that it imports. Plain data: nothing here imports vLLM but functions that say so.
"""

from __future__ import annotations

from vllm_deepinfer.contract.ascend import ASCEND
from vllm_deepinfer.contract.builds import BUILDS
from vllm_deepinfer.contract.distributed import DISTRIBUTED
from vllm_deepinfer.contract.doctor import DOCTOR
from vllm_deepinfer.contract.model import DRAFTING, MODEL, VENDOR_KERNELS
from vllm_deepinfer.contract.platform import PLATFORM, WORKER
from vllm_deepinfer.contract.registration import REGISTRATION
from vllm_deepinfer.contract.runner import RUNNER
from vllm_deepinfer.contract.scheduler import SCHEDULER, STEP_TIMES, VOTE
from vllm_deepinfer.contract.sm100 import SM100
from vllm_deepinfer.contract.symbols import Symbol

CONTRACT: tuple[Symbol, ...] = (
    *PLATFORM,
    *BUILDS,
    *WORKER,
    *REGISTRATION,
    *RUNNER,
    *VOTE,
    *MODEL,
    *DRAFTING,
    *VENDOR_KERNELS,
    *DISTRIBUTED,
    *DOCTOR,
    *SCHEDULER,
    *STEP_TIMES,
    *SM100,
    *ASCEND,
)
