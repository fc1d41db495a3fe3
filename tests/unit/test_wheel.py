"""What is released: the source distribution holds what a reader needs, and the wheel made of it works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from kmirror import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (".ci", ".github", "bench", "campaign", "completions", "deploy", "docs", "src", "tests")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command with an environment that names no folder of this checkout; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KMIRROR", "VIRTUAL"))}
    done = subprocess.run(
        command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(folder: Path, *what: str | Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(*pip, "--target", folder, *what, cwd=folder)


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the source distribution of this checkout unpacks to."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = folder / "checkout"
    for name in kept("", *FOLDERS):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=checkout)
    with tarfile.open(folder / f"kmirror-{__version__}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"kmirror-{__version__}"


@pytest.fixture(scope="module")
def wheel(unpacked_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that the source distribution builds."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=unpacked_sdist)
    (made,) = folder.glob("*.whl")
    return made


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def kept(*folders: str) -> set[str]:
    """Return the files of these folders of the checkout; "" means its own, without the folders in it."""
    found = {path for folder in folders for path in (ROOT / folder).glob("**/*" if folder else "*") if path.is_file()}
    made = ("__pycache__", ".egg-info")
    return {name for path in found if not any(one in (name := str(path.relative_to(ROOT))) for one in made)}


@pytest.mark.slow
def test_the_source_distribution_holds_all_that_is_kept(unpacked_sdist: Path) -> None:
    pages = {f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "RELEASING", "SECURITY")}
    wanted = kept(*FOLDERS) | pages | {"LICENSE", "Makefile", "mkdocs.yml", ".pre-commit-config.yaml"}
    assert {"completions/kmirror.bash", "docs/architecture.md"} <= wanted
    assert wanted - files_below(unpacked_sdist) == set()


def test_the_wheel_holds_the_package_its_pages_and_nothing_else(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    metadata, data = (f"kmirror-{__version__}.{kind}" for kind in ("dist-info", "data/data/share"))
    assert f"{metadata}/licenses/LICENSE" in names
    pages = {f"{data}/doc/kmirror/{name.removeprefix('docs/')}" for name in kept("docs") if name.endswith(".md")}
    units = (
        "kmirror.toml",
        "kmirror@.service",
        "kmirror-serve@.service",
        "kmirror-rehearse@.service",
        "kmirror-rehearse@.timer",
    )
    others = ("prometheus/rules.yml", "grafana/kmirror.json", *(f"systemd/{name}" for name in units))
    assert {name for name in names if not name.startswith(metadata)} == {
        *(name.removeprefix("src/") for name in kept("src")),
        *pages,
        f"{data}/doc/kmirror/CHANGELOG.md",
        *(f"{data}/kmirror/{name}" for name in others),
    }


@pytest.mark.slow
def test_an_installed_wheel_runs_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    """Both commands of a fresh environment, which has the libraries of this one but not its kmirror."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, wheel)
    python = tmp_path / "fresh" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh", cwd=tmp_path)
    where = os.pathsep.join([str(site), *(path for path in sys.path if Path(path).name == "site-packages")])

    def shown(script: str, *arguments: str) -> str:
        return run(python, site / "bin" / script, *arguments, cwd=tmp_path, PYTHONPATH=where)

    found = run(python, "-c", "import kmirror; print(kmirror.__file__)", cwd=tmp_path, PYTHONPATH=where)
    assert Path(found.strip()).is_relative_to(site)
    assert shown("kmirror", "--version").strip().endswith(__version__)
    assert "\n  create " in shown("kmirror", "--help")
    assert "--create" in shown("kafka-mirrors", "--help")
    assert "--create" in shown("kafka-mirrors.sh", "--help")
    assert shown("kmirror", "completion", "bash") == (ROOT / "completions" / "kmirror.bash").read_text(encoding="utf-8")
    topics = {line.split()[0] for line in shown("kmirror", "help").splitlines()}
    assert topics == {"CHANGELOG", *(name[len("docs/") : -len(".md")] for name in kept("docs") if name.endswith(".md"))}
    drill = (ROOT / "docs" / "runbooks" / "drill.md").read_text(encoding="utf-8")
    assert shown("kmirror", "help", "runbooks/drill") == drill
    read = (
        "from importlib.resources import files; import kmirror.library as c, kmirror.web.look, json;"
        "print(len([json.loads(one.read_text()) for one in (files('kmirror') / 'schemas').iterdir()]), c.Client('b:1'))"
    )
    schemas = len(list((ROOT / "src" / "kmirror" / "schemas").glob("*.json")))
    reported = run(python, "-c", read, cwd=tmp_path, PYTHONPATH=where)
    assert reported == f"{schemas} Client('b:1')\n"
