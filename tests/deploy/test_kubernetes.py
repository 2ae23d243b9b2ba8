"""The manifests against the schemas of Kubernetes and JobSet, and what their pods would run, run here."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.deploy.commands import DEPLOY, parse
from tests.imports import ROOT

pytestmark = pytest.mark.engines
yaml = pytest.importorskip("yaml")
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
#: The user of deploy/docker/Dockerfile.
USER = 10001
#: Seconds that processes may take: six of them import scikit-learn on two cores.
PATIENCE = 240.0
DIGITS = [sys.executable, str(ROOT / "examples" / "digits.py")]


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(name) if document["kind"] == kind]


def jobs_of(jobset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the controller of JobSet would make of it."""
    return {
        entry["name"]: {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"x-{entry['name']}-0"},
            "spec": entry["template"]["spec"],
        }
        for entry in jobset["spec"]["replicatedJobs"]
    }  # fmt: skip


def pods() -> list[tuple[str, dict[str, Any]]]:
    """Return the pods' specs of all manifests, with a name."""
    found = []
    for path in MANIFESTS:
        for document in documents(path.name):
            jobs = jobs_of(document) if document["kind"] == "JobSet" else {document["metadata"]["name"]: document}
            found += [
                (f"{path.name}-{name}", job["spec"]["template"]["spec"])
                for name, job in jobs.items()
                if "template" in job["spec"]
            ]
    return found


# --- schemas ------------------------------------------------------------------------------------


@pytest.fixture
def validate() -> Callable[[dict[str, Any]], None]:
    """Compare a document with the schema of its kind; fields that it does not have are errors."""
    official = pytest.importorskip("kubernetes_validate")

    def check(document: dict[str, Any]) -> None:
        official.validate(document, official.latest_version(), strict=True)

    return check


@pytest.fixture
def check_jobset() -> Callable[[dict[str, Any]], list[str]]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(__file__).with_name("jobset.schema.json").read_text())
    return lambda document: [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


@pytest.mark.parametrize("name", ["cluster.yaml", "job.yaml"])
def test_manifests_are_what_kubernetes_takes(validate, name) -> None:
    for document in documents(name):
        validate(document)


def test_the_jobset_is_what_its_controller_takes(validate, check_jobset) -> None:
    [jobset] = documents("jobset.yaml")
    assert check_jobset(jobset) == []
    for job in jobs_of(jobset).values():
        validate(job)


def test_the_schemas_see_what_is_wrong(validate, check_jobset) -> None:
    [jobset] = documents("jobset.yaml")
    broken = copy.deepcopy(jobset)
    broken["spec"]["successPolicy"]["operator"] = "Some"
    broken["spec"]["replicatedJobs"][0]["template_"] = {}
    assert len(check_jobset(broken)) == 2
    job = jobs_of(jobset)["workers"]
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["true"]
    with pytest.raises(Exception, match="comand"):
        validate(job)


# --- what hangs together ------------------------------------------------------------------------


def test_the_set_ends_with_its_workers_and_depends_on_what_comes_before() -> None:
    [jobset] = documents("jobset.yaml")
    names = list(jobs_of(jobset))
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["workers"]}
    for number, entry in enumerate(jobset["spec"]["replicatedJobs"]):
        assert [on["name"] for on in entry.get("dependsOn", [])] == names[max(0, number - 1) : number]
    spec = jobset["spec"]["network"]
    host = f"{jobset['metadata']['name']}-coordinator-0-0.{spec['subdomain']}"
    assert (DEPLOY / "kubernetes" / "jobset.yaml").read_text().count(f"tcp://{host}:5570") == 2


def test_numbers_of_nodes_agree() -> None:
    jobs = jobs_of(documents("jobset.yaml")[0])
    told = parse(jobs["coordinator"]["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (told["servers"], told["workers"]) == tuple(jobs[n]["spec"]["completions"] for n in ("servers", "workers"))
    for job in [*jobs.values(), *of_kind("job.yaml", "Job")]:
        assert job["spec"]["completions"] == job["spec"]["parallelism"]
        assert job["spec"]["completionMode"] == "Indexed"
    [job] = of_kind("job.yaml", "Job")
    assert parse(job["spec"]["template"]["spec"]["containers"][0]["args"])["size"] == job["spec"]["completions"]
    sets = {found["metadata"]["name"]: found["spec"] for found in of_kind("cluster.yaml", "StatefulSet")}
    told = parse(sets["zmqps-coordinator"]["template"]["spec"]["containers"][0]["args"])
    assert told["servers"] == sets["zmqps-server"]["replicas"]


def test_names_of_services_sets_and_pods_agree() -> None:
    for name in ("cluster.yaml", "job.yaml"):
        services = {found["metadata"]["name"]: found["spec"] for found in of_kind(name, "Service")}
        assert all(spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] for spec in services.values())
        for owner in [*of_kind(name, "StatefulSet"), *of_kind(name, "Job")]:
            template = owner["spec"]["template"]
            service = services[owner["spec"].get("serviceName") or template["spec"]["subdomain"]]
            assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert "tcp://zmqps-coordinator-0.zmqps-coordinator:5570" in (DEPLOY / "kubernetes" / "cluster.yaml").read_text()


@pytest.mark.parametrize(("name", "spec"), pods(), ids=lambda value: value if isinstance(value, str) else "")
def test_pods_are_shut_in_and_their_keys_are_for_them_alone(name, spec) -> None:
    assert spec["enableServiceLinks"] is False, "a service zmqps-launch would set ZMQPS_LAUNCH_PORT"
    context = spec["securityContext"]
    assert context["runAsNonRoot"]
    assert (context["runAsUser"], context["fsGroup"]) == (USER, USER)
    [container] = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["keys"]["secret"]["defaultMode"] == 0o440, "what zmqps takes of root's files"
    secret = "zmqps-worker-keys" if name.endswith("-workers") else "zmqps-keys"
    assert volumes["keys"]["secret"]["secretName"] == secret
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert set(mounts) == set(volumes)
    assert "subPath" not in mounts["keys"], "which would never be renewed"


# --- what the pods run, run here ----------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process as a pod would, and end what is left of all."""
    started: list[subprocess.Popen[str]] = []

    def begin(words: list[str], **variables: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "zmqps", *words] if words[0] in ("coordinator", "server", "run") else words
        env = {name: value for name, value in os.environ.items() if not name.startswith("ZMQPS_")}
        with open(tmp_path / f"{len(started)}.log", "w") as log:
            popen = subprocess.Popen(
                words, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT), **variables}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        started.append(popen)
        return popen

    yield begin
    for popen in started:
        if popen.poll() is None:
            for process in [*psutil.Process(popen.pid).children(recursive=True), popen]:
                process.kill()
        popen.wait(PATIENCE)


def free_ports(number: int) -> list[int]:
    """Return ports that were free just now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys as both secrets hold them."""
    subprocess.run(
        [sys.executable, "-m", "zmqps", "keys", "create", "keys"], cwd=tmp_path, check=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
    )  # fmt: skip
    (tmp_path / "worker-keys").mkdir(mode=0o700)
    for name in ("cluster.pub", "worker.key"):
        (tmp_path / "worker-keys" / name).write_bytes((tmp_path / "keys" / name).read_bytes())
        (tmp_path / "worker-keys" / name).chmod(0o600)
    return tmp_path


def ended_well(processes: list[subprocess.Popen[str]], directory: Path) -> str:
    """Wait for all; return what they have said."""
    codes = [popen.wait(PATIENCE) for popen in processes]
    said = "\n".join(path.read_text() for path in sorted(directory.glob("*.log")))
    assert codes == [0] * len(processes), said
    return said


def accuracies(said: str) -> list[float]:
    return [float(found) for found in re.findall(r"test accuracy ([\d.]+)", said)]


def replaced(words: list[str], *pairs: tuple[str, str]) -> list[str]:
    for old, new in pairs:
        words = [word.replace(old, new) for word in words]
    return words


@pytest.mark.timeout(PATIENCE)
def test_the_pods_of_the_jobset_train(start, keys, tmp_path) -> None:
    jobs = {name: job["spec"] for name, job in jobs_of(documents("jobset.yaml")[0]).items()}
    containers = {name: spec["template"]["spec"]["containers"][0] for name, spec in jobs.items()}
    port, *ports = free_ports(3)
    here = (
        ("tcp://0.0.0.0:5570", f"tcp://127.0.0.1:{port}"),
        ("tcp://train-coordinator-0-0.train:5570", f"tcp://127.0.0.1:{port}"),
    )
    nodes = [start(replaced(containers["coordinator"]["args"], *here, ("/keys", str(keys / "keys"))))]
    for index, own in zip(range(jobs["servers"]["completions"]), ports, strict=True):
        more = (("5571", str(own)), ("$(INDEX)", str(index)), ("/keys", str(keys / "keys")))
        nodes.append(start(replaced(containers["servers"]["args"], *here, *more), JOB_COMPLETION_INDEX=str(index)))
    assert containers["workers"]["command"] == ["python", "digits.py"]
    variables = {entry["name"]: entry.get("value") for entry in containers["workers"]["env"]}
    workers = []
    for index in range(jobs["workers"]["completions"]):
        env = {name: str(index) if value is None else value for name, value in variables.items()}
        env = dict(zip(env, replaced(list(env.values()), *here, ("/keys", str(keys / "worker-keys"))), strict=True))
        workers.append(start([*DIGITS, "--passes", "10"], **env, JOB_COMPLETION_INDEX=str(index), OMP_NUM_THREADS="1"))
    said = ended_well([*workers, *nodes], tmp_path)
    assert len(accuracies(said)) == jobs["workers"]["completions"]
    assert min(accuracies(said)) > 0.9, said


@pytest.mark.timeout(PATIENCE)
def test_the_pods_of_the_job_train(start, keys, tmp_path) -> None:
    [job] = of_kind("job.yaml", "Job")
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[-2:] == ["python", "digits.py"]
    [port] = free_ports(1)
    tasks = []
    for index in range(job["spec"]["completions"]):
        own = replaced(words[:-2], ("/keys", str(keys / "keys")), ("/tmp/run", str(tmp_path / f"run-{index}")))
        env = {"JOB_COMPLETION_INDEX": str(index), "ZMQPS_RUN_ADDRESS": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1"}
        tasks.append(start([*own, *DIGITS, "--passes", "10"], **env))
    said = ended_well(tasks, tmp_path)
    assert len(accuracies(said)) == job["spec"]["completions"]
    assert min(accuracies(said)) > 0.9, said
