"""Operating systems and compilers: what minillm can do on each, what is slower there, and the command that helps.

Everything here is read from small files and the interpreter: no torch, no subprocess, nothing that can fail to import.
docs/platforms.md has the same as a table.
"""

import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minillm.host.pythons import dotted

OLDEST_GLIBC, OLDEST_MACOS = (2, 31), (14, 0)
"""What the wheels ask for: llguidance's glibc, and torch's macOS."""
MACHINES = {"linux": ("x86_64", "aarch64"), "darwin": ("arm64",)}
"""The processors that there are torch wheels for, by sys.platform."""

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm")
"""The flags of /proc/cpuinfo that decide how fast small matrices are multiplied."""

COMPILER_PACKAGES = {
    "debian": "apt-get install g++",
    "ubuntu": "apt-get install g++",
    "fedora": "dnf install gcc-c++",
    "rhel": "dnf install gcc-c++",
    "suse": "zypper install gcc-c++",
    "arch": "pacman -S gcc",
    "alpine": "apk add g++",
    "gentoo": "emerge sys-devel/gcc",
    "nixos": "nix-shell -p gcc",
}
"""The command that installs a C++ compiler, by the ID or ID_LIKE of /etc/os-release. Others say which of these they're
like: Amazon Linux is like fedora, openSUSE like suse."""
OLDER_TOOLS = {"dnf": ("microdnf", "yum")}
"""Package managers that take the same command, where the first is not there."""
WITHOUT_SUDO = ("nix-shell",)


@dataclass(frozen=True, slots=True)
class Platform:
    """One machine, as far as it decides what can be installed and compiled."""

    system: str
    """sys.platform: linux, darwin, win32."""
    machine: str
    """x86_64, aarch64, arm64, ..."""
    name: str
    """For people: `Ubuntu 24.04.2 LTS`."""
    families: tuple[str, ...] = ()
    """ID and ID_LIKE of /etc/os-release, the closest first: `("linuxmint", "ubuntu", "debian")`."""
    version: tuple[int, ...] = ()
    """macOS's."""
    glibc: tuple[int, ...] | None = None
    """GNU's C library; None = another one, or not Linux."""
    musl: bool = False
    """The C library of Alpine: wheels for `manylinux` can't be loaded with it."""
    wsl: int | None = None
    """1 or 2: Windows Subsystem for Linux; None = not in it."""

    @classmethod
    def here(cls) -> "Platform":
        """This machine."""
        machine = platform.machine()
        if sys.platform == "darwin":
            version = platform.mac_ver()[0]
            return cls("darwin", machine, f"macOS {version}", version=numbers(version))
        if sys.platform != "linux":
            return cls(sys.platform, machine, f"{platform.system()} {platform.release()}")
        try:
            about = platform.freedesktop_os_release()
        except (OSError, ValueError):  # there is none, or it's no text
            about = {}
        families = (about.get("ID", ""), *about.get("ID_LIKE", "").split())
        musl = "musl" in (sysconfig.get_config_var("SOABI") or "")
        library, version = platform.libc_ver()
        return cls(
            "linux",
            machine,
            about.get("PRETTY_NAME", "Linux"),
            tuple(family.lower() for family in families if family),
            glibc=numbers(version) if library == "glibc" and not musl else None,
            musl=musl,
            wsl=wsl_version(platform.release()),
        )

    @property
    def is_arm(self) -> bool:
        """An Arm processor of 64 bits."""
        return self.machine in ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class Note:
    """What a user of this platform has to know."""

    topic: str
    says: str
    fix: str | None = None
    """What to do about it; None = nothing is to be done."""
    blocks: bool = False
    """minillm can't be installed there."""


def notes(here: Platform) -> Iterator[Note]:
    """What works on this platform, what doesn't, and what is slower."""
    if here.system == "linux":
        yield from _notes_on_linux(here)
    elif here.system == "darwin":
        yield from _notes_on_macos(here)
    elif here.system == "win32":
        yield Note(
            "windows",
            "minillm does not run on Windows itself",
            "install WSL 2 (wsl --install), and go on in its Ubuntu",
            True,
        )
    else:
        yield Note("system", f"never tried on {here.name}", "use Linux or macOS, or a container")


def _notes_on_linux(here: Platform) -> Iterator[Note]:
    if here.musl:
        says = "its C library is musl, and PyTorch has no wheels for that"
        yield Note("C library", says, "use an image with glibc, such as python:3.13-slim or ubuntu:24.04", True)
    elif here.glibc is not None and here.glibc < OLDEST_GLIBC:
        has, wants = dotted(here.glibc), dotted(OLDEST_GLIBC)
        fix = f"use a system with glibc {wants} (Debian 11, Ubuntu 20.04, RHEL 9), or a container of one"
        yield Note("C library", f"glibc {has}: wheels of llguidance want {wants}, so pip compiles it with Rust", fix)
    if here.wsl == 1:
        fix = "in PowerShell: wsl --set-version DISTRIBUTION 2"
        yield Note("WSL", "version 1, where file access is slow and there is no GPU", fix)
    elif here.wsl == 2:
        says = (
            "version 2: works as on Linux. Keep the checkout in its own file system, not under /mnt/c, which is many "
            "times slower. It has half of the machine's memory, unless .wslconfig says otherwise. A GPU needs the "
            "driver of Windows only: install none in here. If no browser opens, copy the address that `make lab` prints"
        )
        yield Note("WSL", says)
    if here.machine not in MACHINES["linux"]:
        yield Note("processor type", f"PyTorch has no wheels for {here.machine}", "use x86_64 or aarch64", True)
    elif here.is_arm:
        says = "Arm: the C++ kernels use NEON, BFDOT and BFMMLA where it has them; tried in an emulator only"
        yield Note("processor type", says)


def _notes_on_macos(here: Platform) -> Iterator[Note]:
    if not here.is_arm:
        says = "PyTorch has had no wheels for Macs with Intel processors since 2.3"
        yield Note("processor type", says, "use a Mac with Apple silicon, or another machine with Linux", True)
    elif here.version and here.version < OLDEST_MACOS:
        says = f"PyTorch's wheels want macOS {OLDEST_MACOS[0]}"
        yield Note("macOS", says, "update it: System Settings, General, Software Update", True)
    else:
        says = (
            "all lessons and commands are meant to work. Decode is slower than on Linux, since the C++ kernels are for "
            "Linux only so far; the GPU of the Mac is not used. Lessons 06 and 09 show other proportions"
        )
        yield Note("macOS", says)


def why_no_native_kernels(here: Platform) -> str | None:
    """Why the C++ kernels can't be compiled on such a system, whatever is installed; None = they can."""
    return (
        None if here.system == "linux" else "the C++ kernels are for Linux only so far: PyTorch's own take their place"
    )


def wanted_compiler() -> str:
    """The command that compiles C++, with its arguments if it has any: `$CXX`, or g++."""
    return os.environ.get("CXX") or "g++"


def find_compiler() -> list[str] | None:
    """The wanted compiler's command with a path: `ccache g++` is ["/usr/bin/ccache", "g++"]. None: there is none."""
    try:
        program, *arguments = shlex.split(wanted_compiler())
    except ValueError:  # a quote without an end, or nothing but blanks
        return None
    path = shutil.which(program)
    return None if path is None else [path, *arguments]


def no_compiler() -> str:
    """What to say where the wanted compiler is not there, with the name of the variable if that names it."""
    wanted = wanted_compiler()
    return f"no C++ compiler found ({f'$CXX is {wanted!r}' if 'CXX' in os.environ else wanted})"


def how_to_get_a_compiler(here: Platform) -> str:
    """A command that installs g++ on this system, or advice."""
    command = next((COMPILER_PACKAGES[family] for family in here.families if family in COMPILER_PACKAGES), None)
    if command is None:
        return "install g++, by this system's package manager"
    tool, _, rest = command.partition(" ")
    if tool in OLDER_TOOLS and not shutil.which(tool):
        tool = next((other for other in OLDER_TOOLS[tool] if shutil.which(other)), tool)
    sudo = "" if os.geteuid() == 0 or tool in WITHOUT_SUDO else "sudo "
    return f"{sudo}{tool} {rest}"


def wsl_version(release: str) -> int | None:
    """1 or 2 by the kernel's release: `4.4.0-19041-Microsoft`, `5.15.90.1-microsoft-standard-WSL2`."""
    if "microsoft" not in release.lower():
        return None
    return 1 if release.endswith("-Microsoft") else 2


def numbers(version: str) -> tuple[int, ...]:
    """`2.36` -> (2, 36)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def read_cpuinfo() -> dict[str, str]:
    """What /proc/cpuinfo says about the first processor; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in text.splitlines()):
        fields.setdefault(name.strip(), value.strip())
    return fields


def instructions() -> str:
    """The flags of the processor, which decide what -march=native uses; `Features` on Arm."""
    fields = read_cpuinfo()
    return fields.get("flags", fields.get("Features", ""))


def describe_cpu() -> tuple[str, list[str]]:
    """The processor's name, and which of CPU_FLAGS it has. Arm's has a number for a name: `aarch64, CPU part 0xd0c`."""
    fields, present = read_cpuinfo(), instructions().split()
    part = f", CPU part {fields['CPU part']}" if "CPU part" in fields else ""
    name = fields.get("model name", (platform.processor() or platform.machine()) + part)
    return name, [flag for flag in CPU_FLAGS if flag in present]
