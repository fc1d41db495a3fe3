"""The container files: what they copy exists, what they start is ours, and nothing in them moves by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "container"

#: Instructions as (name, rest), with continued lines joined and without comments.
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(
        r"\\\n\s*", "", re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE)
    ).splitlines()
    if line
]
STAGES = [rest.split() for name, rest in INSTRUCTIONS if name == "FROM"]


def rests(name: str) -> list[str]:
    return [rest for found, rest in INSTRUCTIONS if found == name]


def test_stages_are_made_of_one_base_whose_python_kmirror_knows() -> None:
    assert [(base, name) for base, _, name in STAGES] == [
        ("${PYTHON_IMAGE}", "build"),
        ("${PYTHON_IMAGE}", "kmirror"),
        ("kmirror", "executor"),
    ]
    (base,) = (rest.removeprefix("PYTHON_IMAGE=") for rest in rests("ARG") if rest.startswith("PYTHON_IMAGE="))
    version = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-bookworm", base)
    assert version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignore = (FOLDER / "Containerfile.dockerignore").read_text().split()
    assert ignore[0] == "*"
    let_in = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    (constraints,) = (rest.removeprefix("CONSTRAINTS=") for rest in rests("ARG") if rest.startswith("CONSTRAINTS="))
    sources = [
        word.replace("${CONSTRAINTS}", constraints)
        for rest in rests("COPY")
        if not rest.startswith("--from=")
        for word in rest.split()[:-1]
    ]
    assert {"pyproject.toml", "README.md", "LICENSE", "src"} <= set(sources), "what the wheel is built of"
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for pattern in (one for patterns in files.values() for one in patterns):
        assert any(pattern == name or pattern.startswith(f"{name}/") for name in sources), f"the wheel has {pattern}"
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in let_in), source


LOCKS = (FOLDER / "constraints.txt", FOLDER / "build-constraints.txt", ROOT / ".ci" / "constraints.txt")


def locked(path: Path) -> dict[str, str]:
    """Return the version of each library in a lock file."""
    return {
        canonicalize_name(found["name"]): found["version"]
        for found in re.finditer(r"^(?P<name>[\w.-]+)==(?P<version>\S+)", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_library_is_locked_by_hash(path: Path) -> None:
    requirements = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).strip())
    assert len(requirements) >= len(locked(path)) > 0  # some have a version for each Python
    for requirement in requirements:
        assert re.match(r"[\w.-]+==\S+", requirement), "a version"
        assert "--hash=sha256:" in requirement, requirement


def test_the_locks_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dev = [one for one in project["dependency-groups"]["dev"] if isinstance(one, str)]
    image, build, ci = map(locked, LOCKS)
    for wanted, lock in (
        (project["project"]["dependencies"], image),
        ([*dev, *project["project"]["dependencies"]], ci),
    ):
        for requirement in map(Requirement, wanted):
            assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), "make lock"
    assert ci.items() >= image.items(), "tests run with what the image has"
    assert build["setuptools"] == ci["setuptools"]
    for requirement in map(Requirement, project["build-system"]["requires"]):
        assert requirement.specifier.contains(build[requirement.name])


def test_nothing_is_installed_that_is_not_locked() -> None:
    steps = [step for rest in rests("RUN") for step in re.split(r"&&|\n", rest) if "pip" in step.split()]
    assert len(steps) == 4
    for step in steps:
        assert "--require-hashes" in step or "--no-deps" in step, step
        assert "--no-build-isolation" in step or "wheel" not in step.split(), step
    for step in (line for line in (ROOT / "Makefile").read_text().replace("\\\n", "").splitlines() if "-m pip" in line):
        assert "--require-hashes" in step or "--no-deps" in step, step


def test_the_bill_of_materials_has_what_is_locked() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "sbom.py", LOCKS[0]], capture_output=True, text=True, check=True, timeout=30
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {one["name"]: one["version"] for one in bill["components"]} == locked(LOCKS[0])
    for one in bill["components"]:
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert one["externalReferences"][0]["hashes"]


def test_an_image_runs_as_a_numbered_user_and_starts_without_a_shell() -> None:
    (user,) = rests("USER")
    assert user == "10001:10001"
    assert "useradd --uid 10001 --gid 10001" in " ".join(rests("RUN"))
    engine, executor = (json.loads(rest) for rest in rests("ENTRYPOINT"))
    assert engine == ["tini", "--", "kmirror"]
    assert executor[-2:] == ["python", "/opt/kmirror/executor.py"]
    assert "openjdk-17-jre-headless tini" in " ".join(rests("RUN"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "kmirror" in project["scripts"]
    assert not rests("ADD")
    labels = " ".join(rests("LABEL"))
    assert f'licenses="{project["license"]}"' in labels
    assert "://" not in labels, "no address is ours"


def test_its_health_is_asked_at_the_port_that_is_exposed() -> None:
    check, none = rests("HEALTHCHECK")
    assert none == "NONE", "Spark watches executors"
    (port,) = rests("EXPOSE")
    script = json.loads(check[check.index("[") :])[-1]
    assert f"http://127.0.0.1:{port}/healthz" in script
    done = subprocess.run(
        [sys.executable, "-c", script.replace(port, "1")], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert "refused" in done.stderr


@pytest.fixture
def executor() -> ModuleType:
    spec = spec_from_file_location("executor", FOLDER / "executor.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: What Spark sets for an executor, as its own image's entry point reads it.
SPARK = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dwords=two words",
    "SPARK_JAVA_OPT_0": "-Dfirst=1",
}


def test_an_executor_is_started_as_spark_says(executor: ModuleType) -> None:
    assert executor.command(SPARK, Path("/spark")) == [
        "java",
        *("-Dfirst=1", "-Dwords=two words", "-Dlast=1", "-Xms512m", "-Xmx512m"),
        *("-cp", "/opt/spark/conf:/spark/jars/*:."),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@10.0.0.7:7078", "--executor-id", "3", "--cores", "1"),
        *("--app-id", "spark-1", "--hostname", "10.0.0.8", "--resourceProfileId", "0", "--podName", "exec-3"),
    ]
    more = SPARK | {"JAVA_HOME": "/jre", "SPARK_CLASSPATH": "/a.jar"}
    assert executor.command(more, Path("/spark"))[0] == "/jre/bin/java"
    assert "/opt/spark/conf:/spark/jars/*:/a.jar:." in executor.command(more, Path("/spark"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "Spark starts it with the argument executor"), (["executor"], "SPARK_EXECUTOR_MEMORY is not set")],
)
def test_an_executor_says_what_it_lacks(arguments: list[str], said: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, FOLDER / "executor.py", *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr
