"""What is in `deploy/` can be parsed, its parts name each other, and its commands exist. Nothing is built."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from typing import Any

import click
import yaml  # type: ignore[import-untyped]  # it says nothing of its types

from taskharbor.cli import cli
from tests.docs.markdown import ROOT, blocks
from tools.release import version

DEPLOY = ROOT / "deploy"


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    files = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    assert {f.name for f in (DEPLOY / "kubernetes").glob("*.yaml")} == {*files, "kustomization.yaml"}
    found = [each for f in files for each in yaml.safe_load_all((DEPLOY / "kubernetes" / f).read_text())]
    assert all(each["apiVersion"] and each["spec"] for each in found)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / f"systemd/taskharbor-{name}.service").read_text())
    return parser


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def dockerfile(instruction: str) -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} +(.+)$", text, re.MULTILINE)


def containers() -> Iterator[dict[str, Any]]:
    for (kind, _), each in manifests().items():
        if kind in ("Deployment", "Job"):
            yield from each["spec"]["template"]["spec"]["containers"]


def command_lines() -> list[list[str]]:
    """The words after `taskharbor` of every process that `deploy/` starts."""
    units = [shlex.split(unit(name)["Service"]["ExecStart"])[1:] for name in ("worker", "serve")]
    services = [service["command"] for name, service in compose().items() if name != "postgres"]
    return [json.loads(dockerfile("CMD")[-1]), *units, *services, *(each["args"] for each in containers())]


def test_commands_and_options_exist() -> None:
    assert len(command_lines()) == 9
    for words in command_lines():
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, words
        # Parsed as the command line would be, with the types of its options; nothing is executed.
        command.make_context(words[0], list(words[1:]), parent=click.Context(cli))


def seconds(words: list[str], default: float) -> float:
    return float(words[words.index("--grace-seconds") + 1]) if "--grace-seconds" in words else default


def test_a_stop_waits_for_longer_than_a_worker_may_take() -> None:
    service = unit("worker")["Service"]
    assert float(service["TimeoutStopSec"]) > seconds(shlex.split(service["ExecStart"]), 7) + 2
    for name, default in (("worker", 7), ("serve", 10)):
        spec = manifests()["Deployment", f"taskharbor-{name}"]["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] > seconds(spec["containers"][0]["args"], default) + 2
        stop = float(compose()[name]["stop_grace_period"].removesuffix("s"))
        assert stop > seconds(compose()[name]["command"], default) + 2


def test_the_worker_unit_reports_to_systemd() -> None:
    service = unit("worker")["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert int(service["WatchdogSec"]) >= 10  # it reports every second


def test_nothing_runs_as_root() -> None:
    (user,) = dockerfile("USER")
    assert user not in ("root", "0")
    assert all(unit(name)["Service"]["User"] not in ("", "root") for name in ("worker", "serve"))
    for (kind, _), each in manifests().items():
        if kind in ("Deployment", "Job"):
            assert each["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
            assert str(each["spec"]["template"]["spec"]["securityContext"]["runAsUser"]) == user
    assert all(each["securityContext"]["allowPrivilegeEscalation"] is False for each in containers())


def test_the_image_runs_the_command_without_a_shell_and_checks_its_health() -> None:
    assert json.loads(dockerfile("ENTRYPOINT")[0]) == ["taskharbor"]
    worker = json.loads(dockerfile("CMD")[-1])
    assert worker[worker.index("--health-file") + 1] in dockerfile("HEALTHCHECK")[0]
    assert {each["image"] for each in containers()} == {compose()["worker"]["image"]}


def test_the_image_has_the_version_of_the_project() -> None:
    texts = (DEPLOY / "Dockerfile", ROOT / "docs/howto/docker.md", DEPLOY / "compose.yaml")
    tags = {tag for file in texts for tag in re.findall(r"taskharbor:(\d[\w.]*)", file.read_text())}
    tags |= {each["image"].partition(":")[2] for each in containers()}
    assert tags == {version()}


def test_probes_ask_what_the_processes_answer() -> None:
    (worker,) = manifests()["Deployment", "taskharbor-worker"]["spec"]["template"]["spec"]["containers"]
    port = worker["args"][worker["args"].index("--health-port") + 1].rpartition(":")[2]
    assert worker["ports"] == [{"name": "health", "containerPort": int(port)}]
    (serve,) = manifests()["Deployment", "taskharbor-serve"]["spec"]["template"]["spec"]["containers"]
    assert serve["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert serve["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_keda_scales_the_worker_by_the_slots_that_it_has() -> None:
    found = manifests()
    scaled = found["ScaledObject", "taskharbor-worker"]["spec"]
    worker = found["Deployment", scaled["scaleTargetRef"]["name"]]["spec"]
    assert "replicas" not in worker
    (trigger,) = scaled["triggers"]
    args = worker["template"]["spec"]["containers"][0]["args"]
    assert trigger["metadata"]["targetValue"] == args[args.index("--concurrency") + 1]
    assert trigger["metadata"]["valueLocation"] == "slots"
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in found
    service = found["Service", "taskharbor-serve"]
    (port,) = service["spec"]["ports"]
    assert trigger["metadata"]["url"].startswith(
        f"http://{service['metadata']['name']}.taskharbor:{port['port']}/api/v1/autoscale?"
    )


def test_the_guide_replaces_the_image_that_the_manifests_run() -> None:
    guide = blocks(ROOT / "docs/howto/kubernetes.md")
    (own,) = [yaml.safe_load(block.text) for block in guide if "kind: Kustomization" in block.text]
    assert {image["name"] for image in own["images"]} == {
        each["image"].partition(":")[0] for each in containers()
    }
    assert all((DEPLOY / folder / "kustomization.yaml").exists() for folder in own["resources"])
