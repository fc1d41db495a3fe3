"""The files of doors to the cluster in charge: in step with each other and with what `kmirror serve` promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kmirror.cli.commands.serve_command import serve_verb
from kmirror.status.in_charge import FRESH_S, SETTLED_S

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
FOLDER = DEPLOY / "kubernetes" / "door"
HAPROXY = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")


def container(name: str) -> dict[str, Any]:
    """Return a container of the door's pods."""
    pods = yaml.safe_load((FOLDER / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (found,) = (one for one in pods["containers"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


def test_a_site_is_down_at_all_doors_before_the_other_one_is_up_at_any() -> None:
    """What was read before a stop may count for a while; then an answer is asked for, and awaited."""
    (found,) = re.findall(r"^    default-server inter (\d+)s fall 1 rise (\d+) ", HAPROXY, re.MULTILINE)
    between, successes = (int(one) for one in found)
    awaited, _ = re.findall(r"timeout check (\d+)s", HAPROXY)
    assert FRESH_S + between + int(awaited) < SETTLED_S + (successes - 1) * between


def test_the_door_opens_after_all_first_checks() -> None:
    general, starting = re.findall(r"timeout check (\d+)s", HAPROXY)
    assert int(starting) > int(general)
    rules = [line for line in HAPROXY.splitlines() if "use_backend" in line]
    assert len(rules) == 2
    assert all("{ nbsrv(starting) eq 0 }" in rule for rule in rules)


def test_kubernetes_runs_the_tested_configuration() -> None:
    folder = container("haproxy")["args"][-1].rpartition("/")[0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container("haproxy")["volumeMounts"]}
    assert mounts["door"] == folder
    (socket,) = re.findall(r"stats socket (\S+)/\w+\.sock", HAPROXY)
    assert mounts["run"] == socket
    (listens,) = re.findall(r"^    bind :(\d+)$", HAPROXY, re.MULTILINE)
    assert [port["containerPort"] for port in container("haproxy")["ports"]] == [int(listens)]


def test_kubernetes_starts_what_haproxy_asks() -> None:
    verb, *words = container("kmirror")["args"]
    assert verb == "serve"
    with serve_verb.make_context("serve", list(words)) as context:
        given = context.params
    asked = set(re.findall(r"check addr \S+ port (\d+)", HAPROXY))
    assert {given["http"].rpartition(":")[2]} == asked
    assert {str(port["containerPort"]) for port in container("kmirror")["ports"]} == asked
    names = set(re.findall(r"/in-charge/[\w-]+\?cluster=(\w+)", HAPROXY))
    (environment,) = container("kmirror")["env"]
    assert environment["name"] == "KMIRROR_CONFIG"
    described = (FOLDER / Path(environment["value"]).name).read_text(encoding="utf-8")
    assert names == set(re.findall(r"^\[clusters\.(\w+)\]$", described, re.MULTILINE))
    assert names == {word.partition("=")[2] for word in words if word.startswith("--cluster")}


@pytest.mark.parametrize("name", ["haproxy", "kmirror"])
def test_a_container_meets_the_restricted_standard(name: str) -> None:
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_service_leads_to_the_pods() -> None:
    service = yaml.safe_load((FOLDER / "service.yaml").read_text())["spec"]
    deployment = yaml.safe_load((FOLDER / "deployment.yaml").read_text())["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"]
    assert service["selector"] == deployment["template"]["metadata"]["labels"]
    assert service["ports"][0]["targetPort"] == container("haproxy")["ports"][0]["name"]
