"""An ARM64 Python in a folder, with what it takes to build for it and to run it here.

    PYTHONPATH=tests python -m aarch64.sysroot .cache/aarch64

Debian's own packages of this machine's release, unpacked: nothing is installed, and apt's lists of
this machine stay as they are. Numpy is the wheel of the version that runs here; pip is the newest.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
OF_CPP = ("libgcc-s1", "libstdc++6")
WHEELS = ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")


class Sysroot:
    """Where things are below the folder.

    Attributes:
        root: the unpacked packages.
        site: a folder for PYTHONPATH, with numpy and pip.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.root, self.site = self.folder / "root", self.folder / "site"
        self.ready = self.folder / "ready"

    def version(self) -> str:
        """Of its Python, "3.11"."""
        (found,) = (self.root / "usr/lib").glob("python3.*")
        return found.name.removeprefix("python")

    def include_folders(self) -> list[Path]:
        """Python's headers."""
        headers = self.root / "usr/include"
        name = f"python{self.version()}"
        return [headers / name, headers, headers / "aarch64-linux-gnu" / name]

    def run(self, *arguments: str | Path, **environ: str) -> None:
        """Run its Python, emulated, with this repository's packages and tests.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        path = os.pathsep.join(map(str, [REPOSITORY / "tests", REPOSITORY, self.site]))
        python = self.root / "usr/bin" / f"python{self.version()}"
        subprocess.run(
            [shutil.which(EMULATOR), "-L", self.root, python, *arguments],
            env={
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **environ,
            },
            check=True,
        )


def check_tools() -> None:
    """Raises SystemExit: a tool is missing."""
    missing = [tool for tool in (COMPILER, EMULATOR, "apt-get", "dpkg") if not shutil.which(tool)]
    if missing:
        raise SystemExit(
            f"{', '.join(missing)}: not found. Install Debian's packages g++-aarch64-linux-gnu and "
            "qemu-user-static (apt-get install), on Debian or Ubuntu."
        )


def apt(folder: Path, *arguments: str) -> list[str]:
    """apt's command for ARM64 packages, with lists of its own and this machine's sources."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "state/status").touch()
    options = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "state/status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
    }
    settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return [arguments[0], "-q", *settings, *arguments[1:]]


def needed_by(folder: Path, *packages: str) -> list[str]:
    """Names of the packages that these depend on."""
    shown = subprocess.run(
        apt(folder, "apt-cache", "depends", *packages), capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"Depends: (\S+)", shown)


def packages_of_python(folder: Path) -> list[str]:
    """The release's Python, its parts, and the libraries that they load."""
    (python,) = (n for n in needed_by(folder, "python3-minimal") if n.startswith("python3."))
    name = f"lib{python.removesuffix('-minimal')}"
    run = [python, f"{name}-minimal", f"{name}-stdlib"]
    libraries = (n for n in needed_by(folder, *run) if n.startswith(("lib", "zlib")))
    return sorted({*run, f"{name}-dev", *libraries, *OF_CPP})


def unpack_packages(place: Sysroot) -> None:
    apt_folder, packages = place.folder / "apt", place.folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(apt(apt_folder, "apt-get", "update"), check=True)
    names = packages_of_python(apt_folder)
    subprocess.run(apt(apt_folder, "apt-get", "download", *names), cwd=packages, check=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, place.root], check=True)


def unpack_wheels(place: Sysroot) -> None:
    wheels = place.folder / "wheels"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
            *(word for name in WHEELS for word in ("--platform", name)),
            "--python-version", place.version(), "-d", wheels,
            f"numpy=={importlib.metadata.version('numpy')}", "pip",
        ],
        check=True,
    )  # fmt: skip
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place.site)


def main() -> None:
    place = Sysroot(Path(sys.argv[1]))
    check_tools()
    own = Path(__file__).read_text()
    if place.ready.exists() and place.ready.read_text() == own:
        return
    for folder in (place.root, place.site, place.folder / "packages", place.folder / "wheels"):
        shutil.rmtree(folder, ignore_errors=True)
    unpack_packages(place)
    unpack_wheels(place)
    place.run("-c", "import numpy, ctypes, platform; assert platform.machine() == 'aarch64'")
    place.ready.write_text(own)


if __name__ == "__main__":
    main()
