"""The cluster files of examples/: by Ray's own schema, and by the required fields of KubeRay.

Ray ships the schema of its cluster files. The schema of KubeRay's resources comes with its operator
only, in no Python package: what it requires is written down here, from KubeRay's `ray.io/v1` types.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from idcf.cli import app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
JOB_FIELDS = {
    "entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit",
    "rayClusterSpec", "activeDeadlineSeconds", "submissionMode", "runtimeEnvYAML",
}  # fmt: skip
CLUSTER_FIELDS = {"rayVersion", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"}
HEAD_FIELDS = {"rayStartParams", "template", "serviceType"}
WORKER_FIELDS = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
}  # fmt: skip


def read_example(name: str) -> dict[str, Any]:
    """Return the content of a file of examples/."""
    content: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    return content


def check_pod_template(template: dict[str, Any]) -> None:
    """Check what Kubernetes requires of the pods here: containers, mounts of volumes, sizes."""
    assert template.keys() <= {"metadata", "spec"}
    spec = template["spec"]
    volumes = {x["name"] for x in spec["volumes"]}
    for container in spec["containers"]:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", container["name"])
        assert container["image"]
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
            assert mount["mountPath"].startswith("/")
        resources = container["resources"]
        # Ray takes the numbers of CPUs and the memory of a node from the limits
        assert resources["limits"] == resources["requests"]
        assert re.fullmatch(r"\d+(Gi|Mi)", resources["limits"]["memory"])


def check_start_parameters(group: dict[str, Any]) -> None:
    """Check that the parameters of `ray start` are texts, as KubeRay requires."""
    assert all(isinstance(x, str) for x in group["rayStartParams"].values())


def check_ray_job(job: dict[str, Any]) -> None:
    """Check a RayJob with its cluster."""
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert spec["entrypoint"]
    assert spec.keys() <= JOB_FIELDS
    cluster = spec["rayClusterSpec"]
    assert cluster.keys() <= CLUSTER_FIELDS
    head = cluster["headGroupSpec"]
    assert {"rayStartParams", "template"} <= head.keys() <= HEAD_FIELDS
    for group in (head, *cluster["workerGroupSpecs"]):
        check_start_parameters(group)
        check_pod_template(group["template"])
    for group in cluster["workerGroupSpecs"]:
        required = {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        assert required <= group.keys() <= WORKER_FIELDS
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_kuberay_example_has_the_required_fields() -> None:
    check_ray_job(read_example("kuberay.yaml"))


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "entrypoint"),
        ("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams"),
        ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "groupName"),
        ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "template", "spec", "volumes"),
    ],
)
def test_a_job_without_a_required_field_fails(path: tuple[str | int, ...]) -> None:
    job: Any = read_example("kuberay.yaml")
    part = job
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    with pytest.raises((AssertionError, KeyError)):
        check_ray_job(job)


def test_the_entry_point_is_a_command_of_this_package() -> None:
    program, verb, *arguments = shlex.split(read_example("kuberay.yaml")["spec"]["entrypoint"])
    assert program == "idcf"
    command = get_command(app).commands[verb]
    values = command.make_context(verb, arguments).params
    assert (values["engine"], values["address"]) == ("ray", "auto")
    assert values["resume"] == Path("/data/passes")


def test_versions_of_ray_are_those_of_the_constraints() -> None:
    (pin,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert read_example("kuberay.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == pin
    assert any(f"'ray=={pin}'" in x for x in read_example("ray-cluster.yaml")["setup_commands"])


def test_the_ray_cluster_is_valid_by_the_schema_of_ray() -> None:
    ray = pytest.importorskip("ray")
    import jsonschema

    path = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    cluster = read_example("ray-cluster.yaml")
    jsonschema.validate(cluster, schema)
    assert len(cluster["provider"]["worker_ips"]) == cluster["max_workers"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "workers": 4}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "max_workers": "four"}, schema)
