"""The manifests for Kubernetes: valid by its schemas, hardened, and in step with kmirror's own command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from kmirror.cli.commands.copying import run_verb
from kmirror.engine.spark import conf
from kmirror.web.answers import ROUTES
from kmirror_rehearse.cli.rehearse_command import rehearse_verb

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
CONTAINERFILE = FOLDER.parent / "container" / "Containerfile"
OVERLAYS = ("local", "spark")
#: The oldest that is supported anywhere, and the newest that there are schemas for.
VERSIONS = ("1.29", "1.37")

#: What the operator's CRD asks of the fields that are used (monitoring.coreos.com/v1, unknown fields are refused).
SERVICE_MONITOR = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["selector", "endpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {"type": "object", "required": ["matchLabels"]},
                "endpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string"},
                            "interval": {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"},
                            "scrapeTimeout": {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"},
                        },
                    },
                },
            },
        }
    },
}


def read(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def one(path: str) -> dict[str, Any]:
    (found,) = read(FOLDER / path)
    return found


FILES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.yaml"))
#: What pods read from a ConfigMap.
DOOR_FILES = {FOLDER / "door" / "haproxy.cfg", FOLDER / "door" / "kmirror.toml"}
#: Whole resources: not what kustomize reads itself, nor patches of a Deployment.
NOT_RESOURCES = ("kustomization.yaml", "resources.yaml", "driver.yaml")
RESOURCES = [path for path in FILES if path.name not in NOT_RESOURCES]


@pytest.mark.parametrize("path", RESOURCES, ids=str)
def test_a_resource_is_valid(path: Path) -> None:
    for resource in read(FOLDER / path):
        if resource["kind"] == "ServiceMonitor":
            assert [error.message for error in Draft202012Validator(SERVICE_MONITOR).iter_errors(resource)] == []
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("path", ["overlays/local/resources.yaml", "overlays/spark/driver.yaml"])
def test_a_patch_makes_a_valid_deployment(path: str) -> None:
    patched = one("base/deployment.yaml")
    (container,) = patched["spec"]["template"]["spec"]["containers"]
    (patch,) = one(path)["spec"]["template"]["spec"]["containers"]
    assert patch.pop("name") == container["name"]
    container["volumeMounts"] += patch.pop("volumeMounts", [])
    container["ports"] += patch.pop("ports", [])
    assert container.keys().isdisjoint(patch)
    container |= patch
    pod = patched["spec"]["template"]["spec"]
    pod["volumes"] += one(path)["spec"]["template"]["spec"].get("volumes", [])
    for version in VERSIONS:
        kubernetes_validate.validate(patched, version, strict=True)


def listed(path: Path) -> Iterator[Path]:
    """Yield the files that a kustomization names, of those below it too."""
    (found,) = read(path / "kustomization.yaml")
    yield (path / "kustomization.yaml").resolve()
    for name in (*found.get("resources", ()), *found.get("components", ())):
        if (path / name).is_dir():
            yield from listed(path / name)
        else:
            yield (path / name).resolve()
    for patch in found.get("patches", ()):
        assert patch["target"] == {"kind": "Deployment", "name": "kmirror"}
        if "path" in patch:
            yield (path / patch["path"]).resolve()
    for generator in found.get("configMapGenerator", ()):
        yield from ((path / name).resolve() for name in generator.get("files", ()))


def test_overlays_name_every_file_and_no_other() -> None:
    roots = (*(FOLDER / "overlays" / overlay for overlay in OVERLAYS), FOLDER / "rehearse", FOLDER / "door")
    named = {path for root in roots for path in listed(root)}
    files = {FOLDER / path for path in FILES if path.name != "secret.example.yaml"}
    assert named == {path.resolve() for path in files | DOOR_FILES}


def settings_of(overlay: str) -> dict[str, str]:
    """Return what the overlay's config map puts into the environment."""
    (generator,) = (
        made for made in one(f"overlays/{overlay}/kustomization.yaml")["configMapGenerator"] if "literals" in made
    )
    return dict(literal.split("=", 1) for literal in generator["literals"])


def arguments_of(overlay: str) -> list[str]:
    """Return the command line of the engine, with `$(NAME)` as Kubernetes replaces it."""
    (container,) = one("base/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    environ = {env["name"]: env.get("value", "10.0.0.7") for env in container["env"]} | settings_of(overlay)
    added = [
        operation["value"]
        for patch in one(f"overlays/{overlay}/kustomization.yaml")["patches"]
        if "patch" in patch
        for operation in yaml.safe_load(patch["patch"])
        if (operation["op"], operation["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
    ]
    return [re.sub(r"\$\((\w+)\)", lambda name: environ[name[1]], word) for word in (*container["args"], *added)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_engine_is_started_as_kmirror_is(overlay: str) -> None:
    verb, *words = arguments_of(overlay)
    assert verb == "run"
    with run_verb.make_context("run", words) as context:
        given = context.params
    assert given["mirror"] == ("orders",)
    assert given["standby"]
    assert given["log_format"] == "json"
    (container,) = one("base/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    assert given["http"].rpartition(":")[2] == str(container["ports"][0]["containerPort"])
    options = conf.SparkOptions(3, Path("log"), "m", given["master"], given["spark_conf"])
    conf.check(options, {})
    if overlay == "spark":
        settings = conf.settings(options, Path("/tmp/x"), Path("/cache/workers.zip"), None)
        assert settings["spark.driver.host"] == "10.0.0.7"
        ports = [port["containerPort"] for port in _container("overlays/spark/driver.yaml")["ports"]]
        assert [settings["spark.driver.port"], settings["spark.driver.blockManager.port"]] == [str(p) for p in ports]
        (mount,) = _container("overlays/spark/driver.yaml")["volumeMounts"]
        template = settings["spark.kubernetes.executor.podTemplateFile"]
        assert template == f"{mount['mountPath']}/executor.yaml"


def _pod(path: str) -> dict[str, Any]:
    """Return the specification of the pod that a resource is, or makes."""
    spec: dict[str, Any] = one(path)["spec"]
    spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    return spec["template"]["spec"] if "template" in spec else spec


def _container(path: str) -> dict[str, Any]:
    (container,) = _pod(path)["containers"]
    found: dict[str, Any] = container
    return found


def test_probes_and_scrapes_ask_what_is_answered() -> None:
    container = _container("base/deployment.yaml")
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {(probe["path"], probe["port"]) for probe in probes} == {("/healthz", "http")}
    (endpoint,) = one("monitoring/servicemonitor.yaml")["spec"]["endpoints"]
    assert {endpoint["path"], "/healthz"} <= ROUTES.keys()
    (port,) = one("base/service.yaml")["spec"]["ports"]
    assert port["name"] == endpoint["port"] == container["ports"][0]["name"]
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in CONTAINERFILE.read_text()


def test_selectors_meet_the_pods() -> None:
    labels = one("base/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    executor = one("overlays/spark/executor.yaml")["metadata"]["labels"]
    assert one("base/deployment.yaml")["spec"]["selector"]["matchLabels"] == labels
    assert one("base/service.yaml")["spec"]["selector"] == labels
    assert one("base/poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"] == labels
    assert one("monitoring/servicemonitor.yaml")["spec"]["selector"]["matchLabels"].items() <= (
        one("base/service.yaml")["metadata"]["labels"].items()
    )
    between, api = read(FOLDER / "overlays/spark/networkpolicy.yaml")
    both = between["spec"]["podSelector"]["matchLabels"]
    assert both == one("base/networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"]
    assert both.items() <= labels.items() & executor.items()
    assert api["spec"]["podSelector"]["matchLabels"] == labels
    assert not labels.items() <= executor.items(), "an executor is no engine: it has no HTTP"


def test_the_rehearsal_is_started_as_kmirror_is_and_names_no_destination() -> None:
    container = _container("rehearse/cronjob.yaml")
    verb, *words = container["args"]
    assert verb == "rehearse"
    with rehearse_verb.make_context("rehearse", words) as context:
        assert context.params["mirror_config"] == "/etc/kmirror/rehearse/source.properties"
        assert context.params["most_ms"] == 60_000
    assert "KMIRROR_BOOTSTRAP_SERVER" not in {one["name"] for one in container["env"]}
    assert "envFrom" not in container
    # its jars come over HTTPS, which the policy of the base does not let pass; it may run where that policy is not
    template = one("rehearse/cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]
    policy = one("rehearse/networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    allowed = {(port["port"], port["protocol"]) for rule in policy["egress"] for port in rule["ports"]}
    assert allowed == {(53, "UDP"), (53, "TCP"), (443, "TCP"), (9092, "TCP")}


@pytest.mark.parametrize("path", ["base/deployment.yaml", "overlays/spark/executor.yaml", "rehearse/cronjob.yaml"])
def test_pods_meet_the_restricted_standard(path: str) -> None:
    spec, container = _pod(path), _container(path)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = spec["securityContext"]["runAsUser"]
    assert f"USER {user}:{spec['securityContext']['runAsGroup']}\n" in CONTAINERFILE.read_text()


@pytest.mark.parametrize("path", ["base/deployment.yaml", "overlays/spark/executor.yaml"])
def test_engines_write_only_to_volumes(path: str) -> None:
    text, container = CONTAINERFILE.read_text(), _container(path)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["cache"] == "/var/cache/kmirror"
    assert f"WORKDIR {mounts['cache']}\n" in text
    assert f"XDG_CACHE_HOME={Path(mounts['cache']).parent}\n" in text
    kinds = {volume["name"]: next(key for key in volume if key != "name") for volume in _pod(path)["volumes"]}
    assert kinds == {"client": "secret", "tmp": "emptyDir", "cache": "emptyDir"}


def test_the_example_of_a_secret_holds_none_and_what_the_engine_reads() -> None:
    secret = one("secret.example.yaml")
    values = secret["stringData"]
    (volume,) = (v for v in one("base/deployment.yaml")["spec"]["template"]["spec"]["volumes"] if "secret" in v)
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    container = _container("base/deployment.yaml")
    mounted = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == volume["name"])
    config = next(env["value"] for env in container["env"] if env["name"] == "KMIRROR_COMMAND_CONFIG")
    assert Path(config).parent == Path(mounted)
    assert Path(config).name in values
    text = "".join(values.values())
    assert set(re.findall(rf"{mounted}/([\w.]+)", text)) <= values.keys()
    assert {line.partition("=")[2] for line in text.splitlines() if line.startswith("password=")} == {"REPLACE-ME"}
