"""The files in deploy/ are valid, are accepted by our commands, and agree with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from prometheus_client import generate_latest

from speculant_drafter import server as drafter_server
from speculant_drafter.cli import DrafterSettings
from speculant_drafter.metrics import ServerMetrics
from speculant_graph.cli import probe
from speculant_graph.cli.graphs import BuildSettings
from speculant_graph.rpc.addresses import is_name, plain_address, socket_path, split_addresses
from speculant_graph.settings import load_settings
from speculant_verifier.cli.serve import VerifierSettings
from speculant_verifier.service import server as verifier_server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE = ["compose.yaml", "compose.gpu.yaml"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SETTINGS = {"build": BuildSettings, "drafter": DrafterSettings, "verifier": VerifierSettings}
USER = 10001
GRACE_S = {"drafter": drafter_server.GRACE_S, "verifier": verifier_server.GRACE_S}


@lru_cache
def instructions(path):
    """Return a Dockerfile's instructions, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def only(path, name):
    """Return the last instruction of a kind."""
    return [rest for instruction, rest in instructions(path) if instruction == name][-1]


def health_of_image(name):
    """Return the arguments of an image's health check command."""
    return json.loads(only(DEPLOY / f"{name}.Dockerfile", "HEALTHCHECK").partition("CMD ")[2])[1:]


@lru_cache
def compose(name):
    """Return a compose file, parsed like the reference implementation."""
    program = shutil.which("docker-compose", path=str(Path(sys.executable).parent))
    assert program is not None, "docker-compose is not installed; run 'make setup'"
    command = [program, "-f", str(DEPLOY / name), "--profile", "*", "config", "--format", "json"]
    environment = {"TEXT": "/text/of/mine", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "level=warning" not in result.stderr, result.stderr
    return json.loads(result.stdout)["services"]


@lru_cache
def manifests(folder="kubernetes"):
    """Return the resources that a folder adds, without its patches."""
    folder = DEPLOY / folder
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    names = [name for name in listed["resources"] if name != "../kubernetes"]
    known = {"kustomization.yaml", *names, *(each["path"] for each in listed.get("patches", ()))}
    assert sorted(known) == sorted(path.name for path in folder.iterdir())
    return [document for name in names for document in yaml.safe_load_all((folder / name).read_text(encoding="utf-8"))]


@lru_cache
def fleet():
    """Return the fleet's manifests by kind and name, with patches applied by kustomize."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl here")
    result = subprocess.run(
        [program, "kustomize", str(DEPLOY / "kubernetes-fleet")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(result.stdout)}


def pod():
    """Return the only workload: a verifier with a drafter in one pod."""
    [found] = [each for each in manifests() if each["kind"] in ("Deployment", "StatefulSet")]
    return found


def containers(pod):
    spec = pod["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*spec.get("initContainers", ()), *spec["containers"])}


def probes(container):
    return [container[name]["exec"]["command"] for name in container if name.endswith("Probe")]


def command_lines():
    """Yield (location, arguments) of each of our commands in these files."""
    for path in DOCKERFILES:
        assert only(path, "ENTRYPOINT") == '["speculant"]'
        yield path.name, json.loads(only(path, "CMD"))
        yield path.name, health_of_image(path.name.partition(".")[0])
    for name in COMPOSE:
        for service, content in compose(name).items():
            if content["image"].startswith("speculant-"):
                assert "entrypoint" not in content or content["entrypoint"] is None
                yield f"{name}: {service}", content["command"]
                if "test" in content.get("healthcheck", {}):
                    yield f"{name}: {service}", content["healthcheck"]["test"][2:]
    for name, container in containers(pod()).items():
        assert "command" not in container
        yield f"kubernetes: {name}", container["args"]
        yield from ((f"kubernetes: {name}", command[1:]) for command in probes(container))
    [drafter] = [each for each in manifests("kubernetes-fleet") if each["kind"] == "StatefulSet"]
    yield "kubernetes-fleet: drafter", containers(drafter)["drafter"]["args"]
    patch = yaml.safe_load((DEPLOY / "kubernetes-fleet" / "verifier-patch.yaml").read_text(encoding="utf-8"))
    yield "kubernetes-fleet: verifier", containers(patch)["verifier"]["args"]
    for path in UNITS:
        [line] = re.findall(r"^ExecStart=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        yield path.name, shlex.split(line)[1:]


def parsed(arguments):
    """Return the settings of a command line."""
    if arguments[0] == "probe":
        return probe.make_parser().parse_args(arguments[1:])
    return load_settings(SETTINGS[arguments[0]], arguments[0], arguments[1:])


COMMAND_LINES = list(command_lines())


@pytest.mark.parametrize(("location", "arguments"), COMMAND_LINES, ids=lambda value: str(value)[:60])
def test_every_command_line_is_taken(location, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = parsed(arguments)
    for section, name in (("server", "listen"), ("service", "listen"), ("client", "address")):
        value = getattr(getattr(settings, section, None), name, "")
        assert not value or split_addresses(value), location


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_into_an_image_is_there(path):
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert patterns[0] == "*"
    kept = {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")}
    copied = set()
    for name, rest in instructions(path):
        if name == "COPY" and "--from" not in rest:
            copied |= set(rest.split()[:-1])
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)
    assert not any(fnmatch(source, pattern) for source in copied for pattern in patterns if pattern.startswith("**"))
    assert only(path, "USER") == f"{USER}:{USER}"
    if path.name == "drafter.Dockerfile":
        [line] = [rest for name, rest in instructions(path) if name == "RUN" and "pip" in rest]
        assert line.endswith('".[drafter]"'), "no torch"


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_services_agree(name):
    services = compose(name)
    graph, drafter, verifier = (services[each] for each in ("graph", "drafter", "verifier"))
    settings = {each: parsed(services[each]["command"]) for each in ("graph", "drafter", "verifier")}
    address, listen = settings["verifier"].client.address, settings["drafter"].server.listen
    if is_name(address):
        assert plain_address(address).split(":") == ["drafter", listen.rpartition(":")[2]]
        assert drafter["deploy"]["replicas"] == 2, "containers of one service share its name"
    else:
        assert address == listen
        assert mounted(drafter, listen) == mounted(verifier, listen)
    assert str(settings["drafter"].server.graph) == str(settings["graph"].output)
    assert settings["graph"].graph.tokenizer_name == settings["verifier"].verifier.model_name
    for service in (graph, drafter, verifier):
        assert service["read_only"] is True
        assert service["user"] == f"{USER}:{USER}"
        assert service["cap_drop"] == ["ALL"]
    assert mounted(graph, f"unix://{settings['graph'].output}") == mounted(
        drafter, f"unix://{settings['graph'].output}"
    )
    assert mounted(verifier, settings["verifier"].service.listen)
    [port] = verifier["ports"]
    assert port["host_ip"] == "127.0.0.1"
    assert settings["verifier"].service.http == f"0.0.0.0:{port['target']}"
    for service, image in ((drafter, "drafter"), (verifier, "verifier")):
        health = service.get("healthcheck", {}).get("test", [])[2:] or health_of_image(image)
        endpoint = settings[image].server if image == "drafter" else settings[image].service
        assert parsed(health).address == endpoint.listen.replace("0.0.0.0", "127.0.0.1")
        assert seconds(service["stop_grace_period"]) > GRACE_S[image] + 5


def seconds(text):
    """Return the seconds of a duration such as 1m30s."""
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def mounted(service, address):
    """Return the volumes mounted at the folder of an address's socket."""
    folder = str(Path(address.removeprefix("unix://")).parent)
    found = [each["source"] for each in service.get("volumes", ()) if each["target"] == folder]
    return found + [each for each in service.get("tmpfs", ()) if each.split(":")[0] == folder]


def test_prometheus_asks_where_the_services_answer():
    services = compose("compose.yaml")
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    [of_drafters] = [job for job in jobs if "dns_sd_configs" in job]
    [of_verifier] = [job for job in jobs if "static_configs" in job]
    [name] = of_drafters["dns_sd_configs"]
    drafter, verifier = (parsed(services[name]["command"]) for name in ("drafter", "verifier"))
    assert name == {"names": ["drafter"], "type": "A", "port": int(drafter.server.metrics_listen.rpartition(":")[2])}
    [target] = of_verifier["static_configs"][0]["targets"]
    assert target == "verifier:" + verifier.service.http.rpartition(":")[2]
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'job="([^"]+)"', rules)) == {job["job_name"] for job in jobs}
    for service in ("prometheus", "grafana"):
        assert services[service]["profiles"] == ["watch"]
        assert all(Path(each["source"]).exists() for each in services[service]["volumes"])


def test_manifests_are_valid():
    version = kubernetes_validate.latest_version()
    for document in (*manifests(), *manifests("kubernetes-fleet")):
        kubernetes_validate.validate(document, version, strict=True)
    broken = json.loads(json.dumps(pod()))
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_containers_of_a_pod_agree():
    spec = pod()["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert spec["securityContext"]["runAsUser"] == USER
    assert spec["securityContext"]["runAsNonRoot"] is True
    grace_s = 0.0
    used = set()
    folders = {}
    for name, container in containers(pod()).items():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip
        settings = parsed(container["args"])
        endpoint = settings.server if name == "drafter" else settings.service
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        folders[name] = {path: each["name"] for path, each in mounts.items()}
        used |= {each["name"] for each in mounts.values()}
        assert {parsed(command[1:]).address for command in probes(container)} == {endpoint.listen}
        for path in (str(socket_path(endpoint.listen).parent), "/var/cache/speculant", "/tmp"):
            assert "emptyDir" in volumes[mounts[path]["name"]]
        data = settings.server.graph if name == "drafter" else Path(settings.verifier.model_name)
        assert mounts[str(data.parent)]["readOnly"]
        if "lifecycle" in container:
            grace_s += container["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace_s += GRACE_S[name]
        http = settings.server.metrics_listen if name == "drafter" else endpoint.http
        assert [each["containerPort"] for each in container["ports"]] == [int(http.rpartition(":")[2])]
    assert used == set(volumes)
    assert spec["terminationGracePeriodSeconds"] > grace_s + 5
    [drafter], [verifier] = spec["initContainers"], spec["containers"]
    assert drafter["restartPolicy"] == "Always", "it starts first, and stays"
    assert "startupProbe" in drafter
    address = parsed(verifier["args"]).client.address
    assert address == parsed(drafter["args"]).server.listen
    folder = str(socket_path(address).parent)
    assert folders["drafter"][folder] == folders["verifier"][folder]


def test_services_policies_and_budgets_select_pods_and_ports_that_there_are():
    labels = pod()["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for container in containers(pod()).values() for port in container["ports"]}
    for document in manifests():
        if document["kind"] not in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            continue
        spec = document["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()
        asked = {port.get("targetPort") for port in spec.get("ports", ())}
        asked |= {port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]}
        assert asked <= ports


def test_verifiers_and_drafters_of_a_fleet_agree():
    documents = fleet()
    version = kubernetes_validate.latest_version()
    for document in documents.values():
        kubernetes_validate.validate(document, version, strict=True)
    drafter = documents["StatefulSet", "speculant-drafter"]
    verifier = documents["Deployment", "speculant-verifier"]
    service = documents["Service", "speculant-drafter"]
    assert list(containers(verifier)) == ["verifier"]
    mounted = {each["name"] for each in containers(verifier)["verifier"]["volumeMounts"]}
    assert mounted == {each["name"] for each in verifier["spec"]["template"]["spec"]["volumes"]}
    address = parsed(containers(verifier)["verifier"]["args"]).client.address
    settings = parsed(containers(drafter)["drafter"]["args"]).server
    [port] = service["spec"]["ports"]
    assert is_name(address)
    assert plain_address(address) == f"{service['metadata']['name']}:{port['port']}"
    assert service["spec"]["clusterIP"] == "None"
    assert drafter["spec"]["serviceName"] == service["metadata"]["name"]
    ports = {each["name"]: each["containerPort"] for each in containers(drafter)["drafter"]["ports"]}
    assert port["port"] == ports[port["targetPort"]] == int(settings.listen.rpartition(":")[2])
    assert ports["metrics"] == int(settings.metrics_listen.rpartition(":")[2])
    spec = drafter["spec"]["template"]["spec"]
    kept = {each["mountPath"]: each["name"] for each in containers(drafter)["drafter"]["volumeMounts"]}
    [claim] = drafter["spec"]["volumeClaimTemplates"]
    assert kept[str(settings.learned.parent)] == claim["metadata"]["name"]
    assert kept.keys() >= {str(settings.graph.parent), "/var/cache/speculant", "/tmp"}
    assert spec["terminationGracePeriodSeconds"] > GRACE_S["drafter"] + 5
    assert spec["securityContext"]["runAsUser"] == USER
    labels = drafter["spec"]["template"]["metadata"]["labels"]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        chosen = documents[kind, "speculant-drafter"]["spec"]
        selector = chosen.get("podSelector") or chosen["selector"]
        assert selector["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    scaled = documents["HorizontalPodAutoscaler", "speculant-drafter"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("StatefulSet", "speculant-drafter")
    told = (DEPLOY / "prometheus" / "rules.yml").read_text(
        encoding="utf-8"
    )  # another test scrapes the metrics that these rules name
    told += generate_latest(ServerMetrics().registry).decode()
    asked = re.findall(
        r"(speculant_\w+_(?:total|sum))", (DEPLOY / "kubernetes-fleet" / "autoscaler.yaml").read_text("utf-8")
    )
    assert len(asked) >= 4
    assert all(name in told for name in asked)
    base, patched = pod(), containers(verifier)["verifier"]["args"]
    differing = set(containers(base)["verifier"]["args"]) ^ set(patched)
    assert all(each.startswith("--drafter=") for each in differing), "the patch repeats the other flags"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_valid(path, tmp_path):
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/speculant/bin/speculant ", "/bin/true ")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in result.stderr.splitlines() if line.startswith((str(tmp_path), path.name))]
    assert complaints == []
    assert "[Install]" in path.read_text(encoding="utf-8")


def test_the_units_agree():
    drafter, verifier = (
        dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
        for path in UNITS
    )
    settings = [parsed(shlex.split(unit["ExecStart"])[1:]) for unit in (drafter, verifier)]
    assert settings[1].client.address == settings[0].server.listen
    assert drafter["User"] == verifier["User"]
    assert int(verifier["TimeoutStopSec"]) > GRACE_S["verifier"] + 5
    for unit, endpoint in ((drafter, settings[0].server), (verifier, settings[1].service)):
        assert str(socket_path(endpoint.listen).parent) == f"/run/{unit['RuntimeDirectory']}"
