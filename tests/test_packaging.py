"""What pip makes of the repository: the wheel, the pins, the version, and the first lines of the bootstrap."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("modeling", "tasks", "recipes", "hub_cards")
# What must travel besides code: everything that the packages read at run time.
DATA_PATTERNS = ("recipes/**/*.yaml", "tasks/data/**/*", "hub_cards/*.jinja", "*/py.typed")


def read_setup() -> configparser.ConfigParser:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def read_requirements() -> list[Requirement]:
    setup = read_setup()
    lines = setup["options"]["install_requires"] + setup["options.extras_require"]["dev"]
    return [Requirement(line) for line in lines.split("\n") if line.strip()]


def read_pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), f"constraints.txt: {line!r} is no plain pin"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def source_files(*patterns: str) -> set[str]:
    """Paths below the root, as POSIX text, that match; byte code left out."""
    found = (path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    paths = (path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts)
    return {path for path in paths if path.startswith(tuple(f"{folder}/" for folder in FOLDERS))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel built from a copy of the sources, by the same hook that pip calls."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed, so no wheel can be built without a network")
    folder = tmp_path_factory.mktemp("wheel")
    source, out = folder / "source", folder / "out"
    out.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_wheel_holds_the_four_packages_and_nothing_else(wheel: list[str]) -> None:
    info = f"neverscratch-{read_setup()['metadata']['version']}.dist-info"
    assert {name.split("/")[0] for name in wheel} == {"neverscratch", info}
    assert {name.split("/")[1] for name in wheel if name.startswith("neverscratch/")} == set(FOLDERS)


def test_wheel_holds_every_module(wheel: list[str]) -> None:
    modules = source_files("**/*.py")
    missing = {name for name in modules if f"neverscratch/{name}" not in wheel}
    assert not missing, f"list the packages of {sorted(missing)} in setup.cfg"


def test_wheel_holds_the_data(wheel: list[str]) -> None:
    data = source_files(*DATA_PATTERNS)
    assert {f"{folder}/py.typed" for folder in FOLDERS} <= data
    missing = {name for name in data if f"neverscratch/{name}" not in wheel}
    assert not missing, f"add {sorted(missing)} to [options.package_data] in setup.cfg"


def test_wheel_holds_the_licence_and_the_command(wheel: list[str]) -> None:
    assert any(re.search(r"\.dist-info/(licenses/)?LICENSE$", name) for name in wheel)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)


def test_pins_satisfy_the_ranges() -> None:
    pins = read_pins()
    for requirement in read_requirements():
        name = canonicalize_name(requirement.name)
        assert name in pins, f"constraints.txt does not pin {name}"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is outside {requirement}"


def test_changelog_and_setup_agree_on_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, flags=re.MULTILINE)
    assert newest, "CHANGELOG.md has no heading such as `## 0.1.0`"
    assert Version(newest[1]) == Version(read_setup()["metadata"]["version"])


# --- scripts/bootstrap.sh: what it says before anything is installed ---


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a blank in its path and no environment."""
    if shutil.which("sh") is None:
        pytest.skip("no POSIX shell here")
    root = tmp_path / "a check out"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/bootstrap.sh", "setup.cfg", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    return root


def run_bootstrap(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VENV")}
    return subprocess.run(
        ["sh", str(checkout / "scripts" / "bootstrap.sh")],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def make_executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("neverscratch: ")
    return line


def test_bootstrap_refuses_an_old_python(checkout: Path) -> None:
    # Answers as a Python 3.9 would: its version when asked, and failure to every other question.
    old = make_executable(checkout / "old python", 'case "$2" in *%d*) echo 3.9.2 ;; *) exit 1 ;; esac')
    line = one_line(run_bootstrap(checkout, PYTHON=str(old)))
    assert "Python 3.11 or newer is needed" in line and "3.9.2" in line
    assert not (checkout / ".venv").exists() and not (checkout / ".venv-lock").exists()


def test_bootstrap_names_a_missing_python(checkout: Path) -> None:
    assert "PYTHON=python9.9 is not to be found" in one_line(run_bootstrap(checkout, PYTHON="python9.9"))


def test_bootstrap_names_missing_modules(checkout: Path) -> None:
    script = f"""case "$2" in *ensurepip* | *pip*) exit 1 ;; esac; exec '{sys.executable}' "$@" """
    bare = make_executable(checkout / "bare", script)
    assert "lacks the venv and ensurepip modules" in one_line(run_bootstrap(checkout, PYTHON=str(bare)))


def test_bootstrap_leaves_a_foreign_environment_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()
    assert "was not made by make" in one_line(run_bootstrap(checkout))
    assert (checkout / ".venv" / "precious").exists()


def test_bootstrap_names_a_full_disk(checkout: Path) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    make_executable(programs / "df", "echo header; echo '/dev/my disk 9999999 9999000 102400 99% /a mount'")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    line = one_line(run_bootstrap(checkout, PATH=path, PYTHON=sys.executable))
    assert "100 MB free" in line and "MB are needed" in line


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_bootstrap_names_a_read_only_checkout(checkout: Path) -> None:
    checkout.chmod(0o555)
    try:
        assert "cannot be written to" in one_line(run_bootstrap(checkout))
    finally:
        checkout.chmod(0o755)


def test_bootstrap_does_nothing_when_all_is_done(checkout: Path) -> None:
    """Second call: no word, no change; a moved checkout is not taken for a finished one."""
    binaries = checkout / ".venv" / "bin"
    binaries.mkdir(parents=True)
    make_executable(binaries / "python", f"""exec '{sys.executable}' "$@" """)
    make_executable(binaries / "neverscratch", "exit 0")
    text = b"".join((checkout / name).read_bytes() for name in ("setup.cfg", "pyproject.toml", "constraints.txt"))
    checksum = subprocess.run(["cksum"], input=text, capture_output=True, check=True).stdout.decode().strip()
    (checkout / ".venv" / ".installed").write_text(
        f"{sys.implementation.cache_tag} {os.path.realpath(checkout)}\n{checksum}\n"
    )
    done = run_bootstrap(checkout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    moved = checkout.rename(checkout.parent / "moved")
    assert "was not made by make" in one_line(run_bootstrap(moved))
