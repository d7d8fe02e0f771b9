"""Checks deploy/ without Docker and without a cluster: every file is read by what understands it."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
problems = []


def expect(good, what):
    if not good:
        problems.append(what)


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def manifests(folder):
    """What kustomize makes; without it, the files that the kustomization names."""
    kustomization = documents(folder / "kustomization.yaml")[0]
    for name in kustomization["resources"] + kustomization["configMapGenerator"][0]["files"]:
        expect((folder / name).exists(), f"kustomization.yaml names {name}, which does not exist")
    named = set(kustomization["resources"]) | {"kustomization.yaml"}
    for path in folder.glob("*.yaml"):
        expect(path.name in named, f"{path.name} is not in kustomization.yaml")
    if shutil.which("kubectl"):
        made = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
        expect(made.returncode == 0, f"kubectl kustomize: {made.stderr}")
        return [d for d in yaml.safe_load_all(made.stdout) if d]
    return [d for name in kustomization["resources"] for d in documents(folder / name)]


def kubernetes(folder):
    found = manifests(DEPLOY / folder)
    version = kubernetes_validate.latest_version()
    for manifest in found:
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{name}: {error.message}")
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    try:
        kubernetes_validate.validate(wrong, version, strict=True)
        problems.append("kubernetes-validate takes a Service with a field that does not exist")
    except kubernetes_validate.ValidationError:
        pass
    return found


def pods(found):
    """Every set of pods is closed off, and mounts what it declares."""
    for one in (m["spec"] for m in found if m["kind"] == "StatefulSet"):
        pod_of(one)
    return len(found)


def single():
    found = kubernetes("kubernetes")
    one = next(m for m in found if m["kind"] == "StatefulSet")["spec"]
    expect(one["replicas"] == 1, "a data folder belongs to one process, so there is one replica")
    return pods(found)


def scaled():
    """Gateways and a learner: the service and the budget select the gateways, and each role has its loops."""
    found = kubernetes("kubernetes-scaled")
    of = lambda kind: {m["metadata"]["name"]: m["spec"] for m in found if m["kind"] == kind}
    sets = of("StatefulSet")
    loops = {name: one["template"]["spec"]["containers"][0]["args"][-1].split(",") for name, one in sets.items()}
    expect(loops["hone-gateway"] == ["serve", "collect"], f"gateways run {loops}")
    expect({"judge", "train"} <= set(loops["hone-learner"]), f"the learner runs {loops}")
    learner = sets["hone-learner"]
    expect(learner["replicas"] == 2, "a second learner stands by")
    probe = learner["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]
    expect(probe == "/livez", "an update would wait for ever for a learner that stands by")
    expect(sets["hone-gateway"]["replicas"] >= 2, "one gateway is no scale")
    for name, one in sets.items():
        labels = one["template"]["metadata"]["labels"]
        expect(one["selector"]["matchLabels"].items() <= labels.items(), f"{name} selects other pods")
        expect(one["template"]["spec"]["containers"][0]["envFrom"], f"{name} knows no database")
    labels = sets["hone-gateway"]["template"]["metadata"]["labels"]
    expect(of("Service")["hone"]["selector"].items() <= labels.items(), "the service selects no gateway")
    budget = of("PodDisruptionBudget")["hone-gateway"]
    expect(budget["selector"]["matchLabels"].items() <= labels.items(), "the budget selects no gateway")
    return pods(found)


def workers():
    """Processes that try tasks: as many as an autoscaler wants, by one number that it may read at three places."""
    folder = DEPLOY / "kubernetes-workers"
    found = kubernetes("kubernetes-workers")
    one = next(m for m in found if m["kind"] == "Deployment")
    expect("replicas" not in one["spec"], "the autoscaler and the manifest fight over the number of replicas")
    pod = one["spec"]["template"]["spec"]
    loops = pod["containers"][0]["args"][-1].split(",")
    expect(loops == ["serve", "collect", "rollout"], f"workers run {loops}")
    pod_of(one["spec"])
    settings = tomllib.loads((folder / "hone.toml").read_text())["rollout"]
    drain_s = settings["drain_ms"] / 1e3 + 20
    expect(pod["terminationGracePeriodSeconds"] > drain_s, "a worker is killed before it gives its jobs back")
    # What each scaler of KEDA needs, and which of its values is the target.
    needs = {
        "metrics-api": ({"url", "valueLocation", "targetValue"}, "targetValue"),
        "prometheus": ({"serverAddress", "query", "threshold"}, "threshold"),
        "postgresql": ({"query", "targetQueryValue"}, "targetQueryValue"),
    }
    seen = set()
    for path in sorted((folder / "keda").glob("*.yaml")):
        of = {m["kind"]: m for m in documents(path)}
        scaled = of["ScaledObject"]
        expect(scaled["apiVersion"] == "keda.sh/v1alpha1", f"{path.name}: {scaled['apiVersion']}")
        expect(scaled["metadata"]["namespace"] == "hone-workers", f"{path.name} is in another namespace")
        expect(scaled["spec"]["scaleTargetRef"] == {"name": one["metadata"]["name"]}, f"{path.name} scales another thing")
        expect(scaled["spec"]["minReplicaCount"] == 0, f"{path.name} never ends the last worker")
        trigger = scaled["spec"]["triggers"][0]
        needed, target = needs[trigger["type"]]
        expect(needed <= trigger["metadata"].keys(), f"{path.name} lacks {needed - trigger['metadata'].keys()}")
        concurrency = int(trigger["metadata"][target])
        expect(concurrency == settings["concurrency"], f"{path.name}: {target} is not rollout.concurrency")
        named = trigger.get("authenticationRef", {}).get("name")
        expect(named is None or of["TriggerAuthentication"]["metadata"]["name"] == named, f"{path.name} has no {named}")
        seen.add(trigger["type"])
    expect(seen == needs.keys(), f"only {seen}")
    return len(found) + len(seen)


def pod_of(one):
    pod = one["template"]["spec"]
    container = pod["containers"][0]
    expect(pod["securityContext"]["runAsNonRoot"], "the pod runs as root")
    expect(container["securityContext"]["readOnlyRootFilesystem"], "the root is writable")
    mounted = {m["name"] for m in container["volumeMounts"]}
    volumes = {v["name"] for v in pod["volumes"]} | {
        v["metadata"]["name"] for v in one.get("volumeClaimTemplates", [])
    }
    expect(mounted == volumes, f"volumes {volumes} are mounted as {mounted}")


def compose():
    path = DEPLOY / "compose.yaml"
    whole = documents(path)[0]
    for name, service in whole["services"].items():
        if "build" in service:
            build = service["build"]
            expect((DEPLOY / build["context"] / build["dockerfile"]).exists(), f"{name}: no Dockerfile")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source == "./prometheus/key":
                continue  # a secret that whoever runs it makes
            if source.startswith("."):
                expect((DEPLOY / source).exists(), f"{name}: {source} does not exist")
            else:
                expect(source in whole["volumes"], f"{name}: the volume {source} is not declared")
    public = [p for s in whole["services"].values() for p in s.get("ports", [])]
    expect(all(p.startswith("127.0.0.1:") for p in public), "a port is open to everybody")
    # The client alone can read a compose file, without a daemon.
    docker = shutil.which("docker")
    plugin = docker and subprocess.run([docker, "compose", "version"], capture_output=True)
    if plugin and plugin.returncode == 0:
        command = [docker, "compose", "-f", path, "--profile", "observability", "config", "--quiet"]
        read = subprocess.run(command, capture_output=True, text=True)
        expect(read.returncode == 0, f"docker compose config: {read.stderr}")
    return len(whole["services"])


def dockerfile():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.M))
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        words = line.split()
        if words[0].startswith("--from="):
            stage = words[0].removeprefix("--from=")
            expect(stage in stages, f"Dockerfile copies from {stage}, which is no stage")
            continue
        for source in words[:-1]:
            expect((ROOT / source).exists(), f"Dockerfile copies {source}, which does not exist")
    rust = re.search(r"FROM rust:([\d.]+)", text).group(1)
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    expect(rust == manifest["package"]["rust-version"], f"Dockerfile builds with Rust {rust}")
    for member in manifest["members"]:
        top = member.split("/")[0]
        expect(f"COPY {top}/" in text, f"Dockerfile does not copy {top}/, a part of the workspace")


def unit():
    """systemd itself reads the unit; the program in it stands for any that exists."""
    text = (DEPLOY / "hone.service").read_text()
    flags = ["NoNewPrivileges=yes", "ProtectSystem=strict", "DynamicUser=yes", "PrivateDevices=yes"]
    for flag in flags:
        expect(flag in text, f"hone.service lacks {flag}")
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        return "systemd-analyze is not here"
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "hone.service"
        copy.write_text(text.replace("/usr/local/bin/hone", "/bin/true"))
        read = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True)
        ours = [line for line in read.stderr.splitlines() if "hone.service" in line]
        expect(not ours, f"systemd-analyze verify: {ours}")
        copy.write_text(text.replace("PrivateTmp=yes", "PrivateTpm=yes"))
        read = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True)
        expect("PrivateTpm" in read.stderr, "systemd-analyze takes a key that does not exist")
    return "systemd-analyze agrees"


def configurations(hone):
    """The program itself reads every configuration that is handed to it."""
    found = [DEPLOY / "hone.toml", *DEPLOY.glob("kubernetes*/hone.toml")]
    for path in found:
        command = [hone, "serve", "--config", path, "--print-config"]
        read = subprocess.run(command, capture_output=True, text=True)
        expect(read.returncode == 0, f"{path}: {read.stderr}")
    return len(found)


def main():
    print(f"kubernetes: {single()} objects, scaled: {scaled()}, workers: {workers()}")
    print(f"compose: {compose()} services")
    dockerfile()
    print(f"systemd: {unit()}")
    json.loads((DEPLOY / "grafana" / "hone.json").read_text())
    for path in [*DEPLOY.glob("grafana/*.yaml"), *DEPLOY.glob("prometheus/*.yaml")]:
        expect(documents(path), f"{path} is empty")
    if len(sys.argv) > 1:
        print(f"configurations: {configurations(sys.argv[1])}")
    for problem in problems:
        print(f"WRONG {problem}")
    sys.exit(1 if problems else 0)


main()
