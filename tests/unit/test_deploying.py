"""What deploy/ has for Kubernetes and YARN, as far as it can be checked without them."""

from __future__ import annotations

import itertools
import os
import re
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
import typer
import yaml

from penstock.bindings.parse import parse_binding
from penstock.cli import app
from penstock.server.api.guard import PUBLIC_PATHS
from penstock.server.manager.scaling_state import policy_for
from penstock.server.runs.definitions import Catalog, JobDefinition
from penstock.server.runs.driver import expand_variables

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = ("namespace.yaml", "access.yaml", "storage.yaml", "manager.yaml", "network.yaml")
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    found for name in MANIFESTS for found in yaml.safe_load_all((KUBERNETES / name).read_text())
]
EXECUTOR = yaml.safe_load((KUBERNETES / "executor.yaml").read_text())


def one(kind: str, name: str = "") -> dict[str, Any]:
    (found,) = (o for o in OBJECTS if o["kind"] == kind and name in o["metadata"]["name"])
    return found


MANAGER = one("Deployment")["spec"]["template"]


def test_every_manifest_is_applied() -> None:
    """The kustomization names all files, and each object has what every object must have."""
    assert KUSTOMIZATION["resources"] == list(MANIFESTS)
    others = {"kustomization.yaml", "executor.yaml"}
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*MANIFESTS, *others}
    groups = {
        "Namespace": "v1",
        "ServiceAccount": "v1",
        "PersistentVolumeClaim": "v1",
        "Service": "v1",
        "Role": "rbac.authorization.k8s.io/v1",
        "RoleBinding": "rbac.authorization.k8s.io/v1",
        "Deployment": "apps/v1",
        "PodDisruptionBudget": "policy/v1",
        "NetworkPolicy": "networking.k8s.io/v1",
    }
    for found in OBJECTS:
        assert found["apiVersion"] == groups[found["kind"]]
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", found["metadata"]["name"])
        if found["kind"] != "Namespace":
            assert found["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
            assert set(found) <= {
                "apiVersion",
                "kind",
                "metadata",
                "spec",
                "rules",
                "roleRef",
                "subjects",
            } | {"automountServiceAccountToken"}


def test_what_names_something_names_what_there_is() -> None:
    """Selectors, volumes, accounts, claims, maps and ports."""
    deployment = one("Deployment")["spec"]
    labels = MANAGER["metadata"]["labels"]
    assert deployment["replicas"] == 2
    assert deployment["selector"]["matchLabels"] == labels
    assert one("Service")["spec"]["selector"] == labels
    assert one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert one("NetworkPolicy", "manager")["spec"]["podSelector"]["matchLabels"] == labels
    ports = {port["name"] for port in MANAGER["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in one("Service")["spec"]["ports"]} <= ports
    assert (
        one("NetworkPolicy", "executor")["spec"]["podSelector"]["matchLabels"]
        == EXECUTOR["metadata"]["labels"]
    )

    accounts = {o["metadata"]["name"] for o in OBJECTS if o["kind"] == "ServiceAccount"}
    binding = one("RoleBinding")
    assert binding["roleRef"]["name"] == one("Role")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [MANAGER["spec"]["serviceAccountName"]]
    maps = {made["name"] for made in KUSTOMIZATION["configMapGenerator"]}
    for made in KUSTOMIZATION["configMapGenerator"]:
        assert all((KUBERNETES / file).is_file() for file in made["files"])
    for pod in (MANAGER["spec"], EXECUTOR["spec"]):
        assert pod["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            assert volume.get("configMap", {"name": next(iter(maps))})["name"] in maps
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or claim["claimName"] == one("PersistentVolumeClaim")["metadata"]["name"]
    homes = {
        next(m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] == "home")
        for pod in (MANAGER["spec"], EXECUTOR["spec"])
    }
    assert homes == {"/var/lib/penstock"}
    assert one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_pods_have_no_more_rights_than_they_need() -> None:
    """Not root, nothing written to the image, no capabilities; executors have no token, and no secret is in a file."""
    for pod in (MANAGER["spec"], EXECUTOR["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert EXECUTOR["spec"]["automountServiceAccountToken"] is False
    for rule in one("Role")["rules"]:
        assert rule["apiGroups"] == [""]
        assert not {"*", "secrets", "pods/exec"} & {*rule["resources"], *rule["verbs"]}
    for policy in (o["spec"] for o in OBJECTS if o["kind"] == "NetworkPolicy"):
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert all("from" in rule for rule in policy["ingress"])
    assert not any(found["kind"] == "Secret" for found in OBJECTS)


def test_probes_ask_what_is_public() -> None:
    """By a name that the manager is called by, over TLS."""
    (container,) = MANAGER["spec"]["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert asked["path"] in PUBLIC_PATHS
        assert asked["scheme"] == "HTTPS"
        assert asked["port"] in {port["name"] for port in container["ports"]}
        (host,) = asked["httpHeaders"]
        assert host["name"] == "Host"
        assert f"--host={host['value']}" in container["args"]


def parsed(arguments: list[str]) -> dict[str, Any]:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    found: dict[str, Any] = serve.make_context("serve", arguments).params
    return found


def test_the_arguments_of_the_manager_are_known() -> None:
    """In the Deployment, and in the unit of systemd."""
    role, *arguments = MANAGER["spec"]["containers"][0]["args"]
    assert role == "manager"
    options = parsed(arguments)
    assert options["bind"].endswith(":8081")
    mounts = {mount["mountPath"] for mount in MANAGER["spec"]["containers"][0]["volumeMounts"]}
    for name in ("tokens", "tls_cert", "tls_key"):
        assert str(options[name].parent) in mounts
    assert {str(folder) for folder in options["jobs"]} <= mounts
    unit = (DEPLOY / "yarn" / "penstock.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)
    assert parsed(command.split())["bind"] == "127.0.0.1:8081"
    assert "KillMode=process" in unit


def definitions(place: str) -> dict[str, JobDefinition]:
    found, problems = Catalog([DEPLOY / place / "jobs"]).definitions()
    assert problems == []
    return found


@pytest.mark.parametrize("place", ["kubernetes", "yarn"])
def test_definitions_are_accepted(place: str) -> None:
    """Their bindings can be read, and there are cores for as many tasks as the scaling policy allows."""
    found = definitions(place)
    assert found
    for definition in found.values():
        bindings = expand_variables(definition.settings["bindings"], {"KAFKA": "broker:9092"})
        for name, uri in bindings.items():
            parse_binding(name, uri, "data" if name == "orders" else "sink")
        spark = definition.settings["spark"]
        policy = policy_for(definition.settings)
        assert policy is not None
        cores = int(spark["spark.executor.instances"]) * int(spark["spark.executor.cores"])
        assert cores >= (policy.max_tasks or 0)
        assert spark["spark.dynamicAllocation.enabled"] == "false"


def test_definitions_fit_the_manifests() -> None:
    """The template, its container, the account and the image are those that there are."""
    for definition in definitions("kubernetes").values():
        spark = definition.settings["spark"]
        template = Path(spark["spark.kubernetes.executor.podTemplateFile"])
        (made,) = (m for m in KUSTOMIZATION["configMapGenerator"] if template.name in m["files"])
        (volume,) = (v for v in MANAGER["spec"]["volumes"] if v.get("configMap") == {"name": made["name"]})
        (mount,) = (
            m["mountPath"]
            for m in MANAGER["spec"]["containers"][0]["volumeMounts"]
            if m["name"] == volume["name"]
        )
        assert str(template.parent) == mount
        named = spark["spark.kubernetes.executor.podTemplateContainerName"]
        assert named == EXECUTOR["spec"]["containers"][0]["name"]
        account = spark["spark.kubernetes.authenticate.executor.serviceAccountName"]
        assert account == EXECUTOR["spec"]["serviceAccountName"]
        (image,) = KUSTOMIZATION["images"]
        assert spark["spark.kubernetes.container.image"] == f"{image['newName']}:{image['newTag']}"


def test_spark_has_every_setting() -> None:
    """Each name stands in the classes of Spark in which it declares its settings."""
    jars = Path(pyspark.__file__).parent / "jars"
    declared = b""
    for jar, folders in {
        "spark-core": ("org/apache/spark/internal/config/", "org/apache/spark/launcher/"),
        "spark-kubernetes": ("org/apache/spark/deploy/k8s/Config", "org/apache/spark/deploy/k8s/Constants"),
        "spark-yarn": ("org/apache/spark/deploy/yarn/config/",),
        "spark-launcher": ("org/apache/spark/launcher/",),
    }.items():
        for path in jars.glob(f"{jar}_*.jar"):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.startswith(folders)]
                declared += b"".join(archive.read(name) for name in names)
    used = set(
        itertools.chain.from_iterable(
            definition.settings["spark"]
            for place in ("kubernetes", "yarn")
            for definition in definitions(place).values()
        )
    )
    written = re.findall(r"^\s+(spark\.\S+) \"", (KUBERNETES / "entrypoint.sh").read_text(), re.MULTILINE)
    assert written

    def is_declared(name: str) -> bool:
        # Spark puts some names together, of what they are for and what they set.
        parts = (name,) if name.encode() in declared else name.rpartition(".")[::2]
        return all(part.encode() in declared for part in parts)

    missing = {name for name in used | set(written) if not is_declared(name)}
    assert missing == set()


def run_entrypoint(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint, with programs that tell how they were called in place of the real ones."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("java", "penstock"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho {name}\nfor word in "$@"; do echo "$word"; done\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    python = programs / "python"
    python.write_text("#!/bin/sh\necho /spark\n")
    python.chmod(0o755)
    return subprocess.run(
        ["bash", str(KUBERNETES / "entrypoint.sh"), *arguments],
        env={"PATH": f"{programs}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_entrypoint_starts_the_manager(tmp_path: Path) -> None:
    """With what only the running pod knows, for Spark."""
    conf = tmp_path / "spark"
    done = run_entrypoint(
        tmp_path,
        "manager",
        "--bind=0.0.0.0:8081",
        SPARK_CONF_DIR=str(conf),
        POD_IP="10.0.0.7",
        POD_NAME="penstock-manager-1",
        POD_NAMESPACE="penstock",
    )
    assert done.stdout.splitlines() == ["penstock", "serve", "--bind=0.0.0.0:8081"], done.stderr
    assert (conf / "spark-defaults.conf").read_text().splitlines() == [
        "spark.driver.host 10.0.0.7",
        "spark.kubernetes.driver.pod.name penstock-manager-1",
        "spark.kubernetes.namespace penstock",
    ]


def test_the_entrypoint_starts_an_executor(tmp_path: Path) -> None:
    """As Spark says, also with options that have spaces; another argument is refused."""
    variables = {
        "SPARK_JAVA_OPT_10": "-Dc=3",
        "SPARK_JAVA_OPT_0": "-Da=with space",
        "SPARK_JAVA_OPT_1": "-Db=2",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    done = run_entrypoint(tmp_path, "executor", **variables)
    told = done.stdout.splitlines()
    assert told[:6] == ["java", "-Da=with space", "-Db=2", "-Dc=3", "-Xms2g", "-Xmx2g"], done.stderr
    assert told[7].endswith(":/spark/jars/*")
    assert told[8] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    (tmp_path / "other").mkdir()
    assert run_entrypoint(tmp_path / "other", "worker").returncode == 2
