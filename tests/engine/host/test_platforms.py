"""What is said on machines that are not this one."""

import platform
import sys
import sysconfig
from pathlib import Path

import pytest

from minillm.host import platforms
from minillm.host.platforms import Platform, how_to_get_a_compiler, notes, why_no_native_kernels
from minillm.kernels.cpu import compiling

FAMILIES = {
    'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04.2 LTS"': "apt-get install g++",
    "ID=debian": "apt-get install g++",
    "ID=linuxmint\nID_LIKE='ubuntu debian'": "apt-get install g++",
    "ID=raspbian\nID_LIKE=debian": "apt-get install g++",
    "ID=fedora": "dnf install gcc-c++",
    'ID="rhel"\nID_LIKE="fedora"': "dnf install gcc-c++",
    'ID="rocky"\nID_LIKE="rhel centos fedora"': "dnf install gcc-c++",
    'ID="amzn"\nID_LIKE="fedora"': "dnf install gcc-c++",
    'ID="opensuse-leap"\nID_LIKE="suse opensuse"': "zypper install gcc-c++",
    "ID=arch": "pacman -S gcc",
    "NAME=Alpine\nID=alpine": "apk add g++",
    "ID=nixos": "nix-shell -p gcc",
}
UBUNTU = Platform("linux", "x86_64", "Ubuntu", ("ubuntu", "debian"), glibc=(2, 39))


def machine(root: Path, os_release: str = "ID=debian", kernel: str = "6.1.0-13-amd64") -> Platform:
    """This process, with such files in /etc and /proc."""
    for name, text in {"etc/os-release": os_release, "proc/sys/kernel/osrelease": kernel}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text + "\n")
    return Platform.here(root)


@pytest.fixture
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(platforms.shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("on_linux")
@pytest.mark.parametrize("os_release", FAMILIES)
def test_the_command_of_each_distribution(os_release: str, tmp_path: Path) -> None:
    here = machine(tmp_path, os_release)
    assert how_to_get_a_compiler(here, as_root=True) == FAMILIES[os_release]
    sudo = "" if "nix" in os_release else "sudo "
    assert how_to_get_a_compiler(here, as_root=False) == sudo + FAMILIES[os_release]
    assert list(notes(here)) == [] and why_no_native_kernels(here) is None


@pytest.mark.usefixtures("on_linux")
def test_a_distribution_that_nobody_heard_of(tmp_path: Path) -> None:
    assert "g++" in how_to_get_a_compiler(Platform.here(tmp_path)), "there is no os-release at all"
    assert "g++" in how_to_get_a_compiler(machine(tmp_path, 'ID=mine\nID_LIKE=""\n# comment\nbroken line'))


@pytest.mark.parametrize(("there", "tool"), [("dnf", "dnf"), ("microdnf", "microdnf"), ("yum", "yum"), ("", "dnf")])
def test_small_images_have_another_package_manager(there: str, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms.shutil, "which", lambda name: name if name == there else None)
    here = Platform("linux", "x86_64", "Rocky Linux", ("rocky", "rhel"))
    assert how_to_get_a_compiler(here, as_root=True) == f"{tool} install gcc-c++"


@pytest.mark.usefixtures("on_linux")
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
def test_wsl(kernel: str, version: int | None, tmp_path: Path) -> None:
    here = machine(tmp_path, kernel=kernel)
    assert here.wsl == version
    assert {note.topic for note in notes(here)} == ({"WSL"} if version else set())
    assert [note.fix is None for note in notes(here)] == ([version == 2] if version else [])


@pytest.mark.usefixtures("on_linux")
@pytest.mark.parametrize(
    ("libc", "musl", "advice"),
    [("2.27", False, True), ("2.31", False, False), ("2.41", False, False), ("", True, True)],
)
def test_c_libraries(libc: str, musl: bool, advice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abi = f"cpython-312-x86_64-linux-{'musl' if musl else 'gnu'}"
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: abi)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", libc) if libc else ("", ""))
    here = machine(tmp_path)
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
def test_detection_works_elsewhere(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3.1", ("", "", ""), "arm64"))
    here = Platform.here(tmp_path)
    assert here.system == system and here.name
    assert here.version == ((15, 3, 1) if system == "darwin" else ())


def test_what_make_lab_says_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(Platform, "here", classmethod(lambda cls: UBUNTU))
    assert "install g++" in (compiling.why_none() or "")
    monkeypatch.setattr(Platform, "here", classmethod(lambda cls: Platform("darwin", "arm64", "macOS")))
    assert "Linux" in (compiling.why_none() or "")
