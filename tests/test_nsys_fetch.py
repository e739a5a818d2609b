from __future__ import annotations

import platform
from pathlib import Path

import pytest
from stubs import fake_nsys, program

from ddpprof import machine, nsys, nsys_fetch
from ddpprof.errors import ToolError

APT = """
import pathlib, shutil
options = dict(item.split("=", 1) for item in sys.argv if item.startswith(("Dir::", "APT::", "Acquire::")))
offered = {offered!r}
if sys.argv[1:] == ["update", "--print-uris"]:
    print("'https://archive.invalid/os/dists/stone/InRelease' x_InRelease 0 ")
    print("'https://archive.invalid/os/dists/stone-updates/InRelease' y_InRelease 0 ")
    print("'https://archive.invalid/os/dists/stone/main/binary-amd64/Packages.xz' z_Packages 0 ")
elif "update" in sys.argv:
    shutil.copy(pathlib.Path(options["Dir::Etc::sourceparts"]) / "nsys.sources", {folder!r})
    sys.exit(100)  # one of the suites is not there
elif "--print-uris" in sys.argv:
    for name, version in offered.items():
        if name in sys.argv:
            file = f"{{name}}_{{version}}_amd64.deb"
            print(f"'https://archive.invalid/os/pool/{{file}}' {{file}} 95000000 SHA256:0")
    sys.exit(100 if len(offered) < 4 else 0)
else:
    for name in offered.keys() & set(sys.argv):
        pathlib.Path(f"{{name}}_{{offered[name]}}_amd64.deb").write_text(name)
"""

OFFERED = {"nsight-systems": "2023.4.4.54~12.4.1-2", "nsight-systems-target": "2023.4.4.54~12.4.1-2", "libssh-4": "0.10.6-0+u1"}

DPKG_DEB = """
import pathlib, shutil
raw = pathlib.Path(sys.argv[3])
name = pathlib.Path(sys.argv[2]).read_text()
shutil.copytree(pathlib.Path({folder!r}) / name, raw, dirs_exist_ok=True, symlinks=True)
"""

LDD = """
import pathlib
host = pathlib.Path(sys.argv[1]).parent
for name in ("libCore.so", "libssh.so"):
    print(f"\\t{{name}} => {{host / name}} (0x00007f)")
print("\\tlibc.so.6 => /lib/libc.so.6 (0x00007f)")
{extra}
"""


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A machine whose archive holds nsys as Debian lays it out: two packages, and a link that dangles without a third."""
    packages = tmp_path / "packages"
    fake_nsys(packages / "nsight-systems-target/usr/lib/arch/nsight-systems/target-linux-x64/nsys")
    target = packages / "nsight-systems-target/usr/lib/arch/nsight-systems/target-linux-x64"
    (target / "libToolsInjection64.so").write_text("injection")
    (target / "libcupti.so.12").write_text("cupti")
    (target / "reports").mkdir()
    host = packages / "nsight-systems/usr/lib/nsight-systems/host-linux-x64"
    host.mkdir(parents=True)
    (host.parent / "target-linux-x64").symlink_to("../arch/nsight-systems/target-linux-x64")
    for name in ("QdstrmImporter", "libCore.so", "libQtWebEngine.so"):
        (host / name).write_text(name)
    (host / "libssh.so").symlink_to("libssh.so.4")
    (host / "libssh.so.4").symlink_to("../../arch/libssh.so.4")
    library = packages / "libssh-4/usr/lib/arch"
    library.mkdir(parents=True)
    (library / "libssh.so.4.9").write_text("ssh")
    (library / "libssh.so.4").symlink_to("libssh.so.4.9")
    programs = tmp_path / "bin"
    program(programs / "apt-get", APT.format(offered=OFFERED, folder=str(tmp_path)))
    program(programs / "dpkg-deb", DPKG_DEB.format(folder=str(packages)))
    program(programs / "ldd", LDD.format(extra=""))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DDPPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(machine, "driver_version", lambda: None)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_fetch_leaves_a_trimmed_tree_that_is_found_again(archive):
    said = []
    found = nsys.fetch(said.append)
    home = archive / "cache" / "nsys-2023.4.4.54-trimmed"
    assert found == nsys.Nsys(home / "target-linux-x64" / "nsys", "2023.4.4.54", "fetched")
    assert names(archive / "cache") == [home.name]
    assert names(home / "target-linux-x64") == ["libToolsInjection64.so", "nsys"]
    assert names(home / "host-linux-x64") == ["QdstrmImporter", "libCore.so", "libssh.so", "libssh.so.4"]
    assert (home / "host-linux-x64" / "libssh.so").read_text() == "ssh"
    assert said == [
        "nsys was not found: fetching Nsight Systems 2023.4.4.54 from non-free of this machine's Debian archive into the cache "
        "(285 MB; nothing is installed)"
    ]


def test_with_a_driver_the_target_tree_is_kept_whole(archive, monkeypatch):
    monkeypatch.setattr(machine, "driver_version", lambda: "580.65.06")
    found = nsys.fetch()
    assert found.path.parts[-3] == "nsys-2023.4.4.54-whole"
    assert names(found.path.parent) == ["libToolsInjection64.so", "libcupti.so.12", "nsys", "reports"]


def test_the_second_of_two_at_once_leaves_the_tree_of_the_first_alone(archive):
    first = nsys.fetch()
    mark = first.path.parent / "in-use"
    mark.touch()
    assert nsys.fetch() == first
    assert mark.exists()
    assert names(archive / "cache") == ["nsys-2023.4.4.54-trimmed"]


def test_debian_is_asked_for_its_own_suite_and_for_those_known_to_have_nsys(archive):
    nsys.fetch()
    own, others = (archive / "nsys.sources").read_text().split("\n\n")
    assert "URIs: https://archive.invalid/os\n" in own
    assert own.endswith("Suites: stone\nComponents: main non-free")
    assert others.endswith("Suites: trixie bookworm\nComponents: non-free\n")


def test_ubuntu_keeps_it_in_multiverse(archive, monkeypatch):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"})
    nsys.fetch()
    assert (archive / "nsys.sources").read_text().endswith("Suites: stone\nComponents: main multiverse\n")


def test_an_archive_without_nsys_or_out_of_reach_is_an_error(archive):
    program(archive / "bin" / "apt-get", APT.format(offered={"libssh-4": "0.10.6"}, folder=str(archive)))
    with pytest.raises(ToolError, match="cannot be reached or has none in non-free") as caught:
        nsys.fetch()
    assert "--capture torch" in caught.value.hint
    assert names(archive / "cache") == []


def test_a_library_that_this_machine_lacks_is_named(archive):
    program(archive / "bin" / "ldd", LDD.format(extra="print('\\tlibarrow.so.500 => not found')"))
    with pytest.raises(ToolError, match=r"does not run on this machine \(no libarrow\.so\.500\)"):
        nsys.fetch()


@pytest.mark.parametrize("missing", ["apt-get", "dpkg-deb", "ldd"])
def test_without_the_programs_for_it_nothing_is_tried(archive, missing):
    (archive / "bin" / missing).unlink()
    assert not nsys_fetch.can_fetch()
    with pytest.raises(ToolError, match="without apt-get, dpkg-deb and ldd it cannot be fetched"):
        nsys.fetch()


def test_another_distribution_is_told_so(archive, monkeypatch):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    with pytest.raises(ToolError, match="on Debian and Ubuntu only"):
        nsys.fetch()


def test_a_cache_that_cannot_be_written_names_the_way_out(archive, monkeypatch):
    (archive / "file").touch()
    monkeypatch.setenv("DDPPROF_CACHE", str(archive / "file"))
    with pytest.raises(ToolError, match="could not be kept in the cache") as caught:
        nsys.fetch()
    assert "DDPPROF_CACHE" in caught.value.hint
