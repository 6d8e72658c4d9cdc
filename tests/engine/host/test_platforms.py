"""What is said on machines that are not this one."""

import platform
import sys
import sysconfig
from collections.abc import Callable

import pytest

from minillm.host import platforms
from minillm.host.platforms import Platform, how_to_get_a_compiler, notes, why_no_native_kernels
from minillm.kernels.cpu import compiling

FAMILIES = [
    (dict(ID="ubuntu", ID_LIKE="debian", PRETTY_NAME="Ubuntu 24.04.2 LTS"), "apt-get install g++"),
    (dict(ID="debian"), "apt-get install g++"),
    (dict(ID="linuxmint", ID_LIKE="ubuntu debian"), "apt-get install g++"),
    (dict(ID="raspbian", ID_LIKE="debian"), "apt-get install g++"),
    (dict(ID="fedora"), "dnf install gcc-c++"),
    (dict(ID="rhel", ID_LIKE="fedora"), "dnf install gcc-c++"),
    (dict(ID="rocky", ID_LIKE="rhel centos fedora"), "dnf install gcc-c++"),
    (dict(ID="centos", ID_LIKE="rhel fedora"), "dnf install gcc-c++"),
    (dict(ID="amzn", ID_LIKE="fedora"), "dnf install gcc-c++"),
    (dict(ID="opensuse-leap", ID_LIKE="suse opensuse"), "zypper install gcc-c++"),
    (dict(ID="arch"), "pacman -S gcc"),
    (dict(NAME="Alpine", ID="alpine"), "apk add g++"),
    (dict(ID="nixos"), "nix-shell -p gcc"),
]
UBUNTU = Platform("linux", "x86_64", "Ubuntu", ("ubuntu", "debian"), glibc=(2, 39))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Platform]:
    """This process, on a Linux with such a kernel and such an /etc/os-release."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(platforms.shutil, "which", lambda name: f"/usr/bin/{name}")

    def here(kernel: str = "6.1.0-13-amd64", **os_release: str) -> Platform:
        monkeypatch.setattr(platform, "release", lambda: kernel)
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda: os_release)
        return Platform.here()

    return here


@pytest.mark.parametrize(("os_release", "command"), FAMILIES, ids=str)
def test_the_command_of_each_distribution(
    machine: Callable[..., Platform], os_release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(**os_release)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert how_to_get_a_compiler(here) == command
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert how_to_get_a_compiler(here) == ("" if "nix" in command else "sudo ") + command
    assert list(notes(here)) == [] and why_no_native_kernels(here) is None


def test_a_distribution_that_nobody_heard_of(machine: Callable[..., Platform], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "g++" in how_to_get_a_compiler(machine(ID="mine", ID_LIKE=""))

    def none_there() -> dict[str, str]:
        raise OSError("there is no os-release at all")

    monkeypatch.setattr(platform, "freedesktop_os_release", none_there)
    assert "g++" in how_to_get_a_compiler(Platform.here())


@pytest.mark.parametrize(("there", "tool"), [("dnf", "dnf"), ("microdnf", "microdnf"), ("yum", "yum"), ("", "dnf")])
def test_small_images_have_another_package_manager(there: str, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms.shutil, "which", lambda name: name if name == there else None)
    here = Platform("linux", "x86_64", "Rocky Linux", ("rocky", "rhel"))
    assert how_to_get_a_compiler(here).removeprefix("sudo ") == f"{tool} install gcc-c++"


@pytest.mark.parametrize(
    ("kernel", "version"),
    [
        ("6.8.0-45-generic", None),
        ("6.5.0-1025-azure", None),
        ("4.4.0-19041-Microsoft", 1),
        ("5.15.90.1-microsoft-standard-WSL2", 2),
        ("6.6.36.3-microsoft-standard-WSL2+", 2),
    ],
)
def test_wsl(machine: Callable[..., Platform], kernel: str, version: int | None) -> None:
    here = machine(kernel)
    assert here.wsl == version
    assert {note.topic for note in notes(here)} == ({"WSL"} if version else set())
    assert [note.fix is None for note in notes(here)] == ([version == 2] if version else [])


@pytest.mark.parametrize(
    ("libc", "musl", "advice"),
    [("2.27", False, True), ("2.31", False, False), ("2.41", False, False), ("", True, True)],
)
def test_c_libraries(
    machine: Callable[..., Platform], libc: str, musl: bool, advice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    abi = f"cpython-312-x86_64-linux-{'musl' if musl else 'gnu'}"
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: abi)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", libc) if libc else ("", ""))
    here = machine()
    assert here.musl == musl
    found = list(notes(here))
    assert bool(found) == advice
    assert any(note.blocks for note in found) == musl, "with an old glibc, pip compiles what has no wheel"


@pytest.mark.parametrize(
    ("here", "blocks"),
    [
        (UBUNTU, False),
        (Platform("linux", "aarch64", "Debian", ("debian",), glibc=(2, 36)), False),
        (Platform("linux", "armv7l", "Raspbian", ("raspbian", "debian"), glibc=(2, 36)), True),
        (Platform("darwin", "arm64", "macOS 15.1", version=(15, 1)), False),
        (Platform("darwin", "arm64", "macOS 13.6", version=(13, 6)), True),
        (Platform("darwin", "x86_64", "macOS 14.1", version=(14, 1)), True),
        (Platform("win32", "AMD64", "Windows 11"), True),
        (Platform("freebsd14", "amd64", "FreeBSD"), False),
    ],
)
def test_where_it_cannot_be_installed(here: Platform, blocks: bool) -> None:
    found = list(notes(here))
    assert any(note.blocks for note in found) == blocks
    assert all(note.fix for note in found if note.blocks), "and what to do instead"
    assert (why_no_native_kernels(here) is None) == (here.system == "linux")


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_detection_works_elsewhere(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3.1", ("", "", ""), "arm64"))
    here = Platform.here()
    assert here.system == system and here.name
    assert here.version == ((15, 3, 1) if system == "darwin" else ())


def test_what_make_lab_says_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(Platform, "here", classmethod(lambda cls: UBUNTU))
    assert "install g++" in (compiling.why_none() or "")
    monkeypatch.setattr(Platform, "here", classmethod(lambda cls: Platform("darwin", "arm64", "macOS")))
    assert "Linux" in (compiling.why_none() or "")
