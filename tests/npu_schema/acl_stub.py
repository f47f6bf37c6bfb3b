"""Builds empty libraries in the place of CANN's, so that torch_npu can be imported without it.

    python acl_stub.py SITE_PACKAGES OUTPUT_FOLDER

torch_npu's own libraries are asked (nm) which functions they need; each is made to return 0, which
CANN calls success. Nothing here computes: with it torch_npu has its schemas and meta kernels, and
no device.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("ascendcl", "acl_op_compiler", "acl_tdt_channel", "ge_runner", "graph", "hccl")
CANN_FUNCTION = re.compile(r"(?:acl|aml|Hccl|Msprof|rt(?=[A-Z]))\w+$")
LOOKED_UP = (
    "aclrtDestroyStreamForce",
    "aclrtSetOpExecuteTimeOut",
    "aclGetCompileopt",
    "aclGetCompileoptSize",
    "aclrtCtxSetSysParamOpt",
    "aclrtGetSysParamOpt",
    "aclrtSetDeviceSatMode",
    "aclrtSetSysParamOpt",
)
"""Functions that torch_npu looks up by name when a meta kernel asks for the chip."""
SPECIAL = {
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned *count) { *count = 1; return 0; }",
    "aclrtGetSocName": 'const char *aclrtGetSocName(void) { return "Ascend950DT_9582"; }',
    "aclGetCompileoptSize": "size_t aclGetCompileoptSize(int option) { return 16; }",
    "aclGetCompileopt": (
        "int aclGetCompileopt(int option, char *value, size_t n) "
        '{ strncpy(value, "disable", n); return 0; }'
    ),
    "aclrtCreateStreamWithConfig": (
        "static int stream; int aclrtCreateStreamWithConfig(void **created) "
        "{ *created = &stream; return 0; }"
    ),
    "aclrtGetSysParamOpt": (
        "int aclrtGetSysParamOpt(int option, long *value) { *value = 0; return 0; }"
    ),
    "aclGetRecentErrMsg": 'const char *aclGetRecentErrMsg(void) { return "no CANN here"; }',
}


def needed_functions(site_packages: Path) -> list[str]:
    """Functions of CANN that the libraries of torch_npu leave undefined."""
    libraries = sorted((site_packages / "torch_npu").rglob("*.so"))
    if not libraries:
        sys.exit(f"{site_packages} holds no torch_npu; install the wheel there first")
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--format=posix", *map(str, libraries)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.split()[0] for line in listed.stdout.splitlines() if " U" in line}
    return sorted(name for name in names if CANN_FUNCTION.match(name))


def source(names: list[str]) -> str:
    """C that defines ``names``."""
    names = sorted({*names, *LOOKED_UP})
    bodies = [SPECIAL.get(name, f"int {name}(void) {{ return 0; }}") for name in names]
    return "\n".join(["#include <string.h>", *bodies]) + "\n"


def build(site_packages: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "cann.c"
    text.write_text(source(needed_functions(site_packages)))
    for library in LIBRARIES:
        output = folder / f"lib{library}.so"
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", output, text], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
