"""Checks the Helm chart, the manifests that are rendered from it, and the kustomize folders, with Helm, kubectl, the
schemas of Kubernetes, promtool and checkov.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import kubernetes_validate.utils
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/plimsoll"
TOOLS = ROOT / ".tools/platform/bin"
KUBERNETES_VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
# Kinds of the Prometheus Operator, whose schemas are not here.
OPERATOR = ("PodMonitor", "PrometheusRule", "ServiceMonitor")
# What contradicts, and the reason that Helm prints.
CONTRADICTIONS = (
    ("mode=sidecar,fleet.autoscaling.enabled=true", "in mode sidecar Plimsoll scales with its application"),
    ("mode=sidecar,fleet.persistence.enabled=true", "the pod of the application holds the volume"),
    ("mode=sidecar,clientToken.secret=x", "in mode sidecar only containers of the pod connect"),
    ("mode=sidecar,tls.secret=x", "in mode sidecar clients connect over loopback"),
    ("fleet.autoscaling.enabled=true,fleet.autoscaling.minReplicas=9", "minReplicas (9) is more than maxReplicas (6)"),
    ("fleet.autoscaling.enabled=true,resources.requests.cpu=null", "fleet.autoscaling measures use against it"),
    ("fleet.autoscaling.enabled=true,resources.requests=null", "fleet.autoscaling measures use against it"),
    ("otel.headers.secret=x", "without otel.endpoint nothing is sent"),
    ("fleet.persistence.storageClass=fast", "storageClass is set, but enabled is false"),
    ("image.tag=latest", "changes what runs at any restart"),
    ("resources.limits=null", "Plimsoll fits its buffers and connections to it"),
    ("monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true", "would count everything twice"),
    ("env.PLIMSOLL_LISTEN=:1", "the chart itself sets listen"),
    ('config=listen = "127.0.0.1:1"', "the chart itself sets listen"),
    ('config=credential = "env:KEY"', "anybody in the cluster could use it without a token"),
    ('networkPolicy={"enabled": true, "clients": []}', "would let every pod of every namespace in"),
    ('networkPolicy={"enabled": true, "prometheus": []}', "an empty list would let everybody in"),
    ('networkPolicy={"enabled": true}\nfleet.redis.secret="x"', "no rule lets the replicas reach the server of fleet.redis"),
    ('networkPolicy={"enabled": true}\notel.endpoint="http://collector:4318"', "no rule lets the replicas reach otel.endpoint"),
    ("otel.endpoint=http://c:4318,env.OTEL_RESOURCE_ATTRIBUTES=a", "the chart itself sets the collector"),
    ("otel.endpoint=collector:4318", "at '/otel/endpoint'"),
    ("fleet.replica=1", "additional properties 'replica' not allowed"),
)


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def output(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def template(chart, *options, version=KUBERNETES_VERSIONS[-1], release="plimsoll"):
    return output(TOOLS / "helm", "template", release, chart, "--namespace", "agents", "--kube-version", f"{version}.0", *options)


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def values_files():
    return sorted((CHART / "ci").glob("*.yaml"))


def agent_chart(folder):
    """The example chart with its dependency, as `helm dependency build` puts it."""
    shutil.copytree(DEPLOY / "helm", pathlib.Path(folder) / "helm")
    chart = pathlib.Path(folder) / "helm/examples/agent"
    output(TOOLS / "helm", "dependency", "build", chart, env=os.environ | {"HELM_CACHE_HOME": folder, "HELM_CONFIG_HOME": folder})
    return chart


# It reads its files anew for each object, which takes most of its time.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def validate(objects, versions=KUBERNETES_VERSIONS):
    for version in versions:
        for one in objects:
            if one["kind"] not in OPERATOR:
                kubernetes_validate.validate(one, version, strict=True)


def pods(objects):
    return [one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("Deployment", "StatefulSet")]


def chart_is_linted_and_valid_on_each_version():
    for values in values_files():
        output(TOOLS / "helm", "lint", "--strict", CHART, "--values", values)
        # What is rendered differs only between the first version and the next.
        for versions in (KUBERNETES_VERSIONS[:1], KUBERNETES_VERSIONS[1:]):
            objects = documents(template(CHART, "--values", values, version=versions[0]))
            validate(objects, versions)
            names = [(one["kind"], one["metadata"]["name"]) for one in objects]
            assert len(names) == len(set(names)), f"{values.name}: two objects have one name: {names}"


def example_agent_includes_the_sidecar():
    with tempfile.TemporaryDirectory() as folder:
        chart = agent_chart(folder)
        config = folder + "/values.yaml"
        pathlib.Path(config).write_text("plimsoll: {config: 'mode = \"shadow\"'}")
        objects = documents(template(chart, "--values", config, release="agent"))
    validate(objects)
    (pod,) = pods(objects)
    (plimsoll,) = pod["initContainers"]
    assert plimsoll["restartPolicy"] == "Always"
    (agent,) = pod["containers"]
    mounted = [mount["name"] for mount in plimsoll["volumeMounts"] + agent["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod["volumes"]), mounted
    names = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert names == {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}, "not the subchart's configuration"


def example_agent_can_run():
    """Its root is read-only: home and temporary files are on its volume. Its version is one that was tried with Plimsoll."""
    (agent,) = yaml.safe_load((DEPLOY / "kubernetes/native-sidecar.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    (mount,) = agent["volumeMounts"]
    env = {one["name"]: one["value"] for one in agent["env"]}
    assert env["HOME"] == env["TMPDIR"] == agent["workingDir"] == mount["mountPath"], env
    (package,) = [word for word in agent["command"] if "@" in word]
    assert f"npm {package}" in (ROOT / "tests/agents/pins").read_text().splitlines(), f"{package} was not tried"
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["anthropic"]["options"]["baseURL"] == env["ANTHROPIC_BASE_URL"] + "/v1"


def contradictions_are_refused_with_the_reason():
    for settings, reason in CONTRADICTIONS:
        option = "--set-json" if "{" in settings else "--set-literal" if settings.startswith("config=") else "--set"
        options = [part for one in settings.split("\n") for part in (option, one)]
        done = run(TOOLS / "helm", "template", "plimsoll", CHART, *options)
        assert done.returncode != 0, f"{settings} is accepted"
        assert reason in done.stderr, f"{settings}: {done.stderr[-600:]}"


def every_name_of_a_secret_makes_a_volume():
    """Names of secrets may have dots and 253 characters, those of volumes not."""
    names = ["plain", "with.dots", "long-" + "x" * 80]
    (pod,) = pods(documents(template(CHART, "--set-json", f"secrets={json.dumps(names)}")))
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert set(names) < set(volumes.values()), volumes
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in volumes), volumes
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert all(volumes[mounts[f"/secrets/{name}"]] == name for name in names), mounts


def change_of_configuration_replaces_pods():
    def annotations(config):
        (workload,) = [one for one in documents(template(CHART, "--set-literal", f"config={config}")) if one["kind"] == "Deployment"]
        return workload["spec"]["template"]["metadata"]["annotations"]

    assert annotations('mode = "shadow"') != annotations('mode = "observe"')


def fleet_keeps_clients_at_one_replica():
    """Without a shared server the Service must not spread the requests of one client."""
    (service,) = [one for one in documents(template(CHART)) if one["kind"] == "Service"]
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["clients"], "the admin port is not for clients"


def fleet_with_a_server_is_spread():
    objects = documents(template(CHART, "--set", "fleet.redis.secret=shared"))
    (service,) = [one for one in objects if one["kind"] == "Service"]
    assert "sessionAffinity" not in service["spec"]
    (workload,) = [one for one in objects if one["kind"] == "Deployment"]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert not [name for name in env if "OTEL" in name], "nobody asked for a collector"
    assert env["PLIMSOLL_STORE_URL"] == "file:/secrets/shared/url"
    assert env["PLIMSOLL_STORE_SECRET"] == "file:/secrets/shared/secret"
    assert "/secrets/shared" in [mount["mountPath"] for mount in container["volumeMounts"]]


def rendered_rules_and_dashboards_are_those_of_deploy():
    objects = documents(template(CHART, "--values", CHART / "ci/fleet.yaml"))
    (rule,) = [one for one in objects if one["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
    (board,) = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-dashboard")]
    boards = sorted((DEPLOY / "grafana").glob("*.json"))
    assert board["data"].keys() == {file.name for file in boards}
    for file in boards:
        assert json.loads(board["data"][file.name]) == json.loads(file.read_text()), file.name
    (monitor,) = [one for one in objects if one["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https", "the fleet example has TLS on the admin port"
    # The rules look for this job; without the relabeling it would be the PodMonitor's name.
    assert {"action": "replace", "targetLabel": "job", "replacement": "plimsoll"} in endpoint["relabelings"]


def service_monitor_reads_what_the_pod_monitor_does():
    for mode in ("fleet", "sidecar"):
        def monitor_of(kind):
            objects = documents(template(CHART, "--set", f"mode={mode},monitoring.{kind}.enabled=true"))
            return objects, next(one["spec"] for one in objects if one["kind"].lower() == kind.lower())

        objects, by_service = monitor_of("serviceMonitor")
        _, by_pod = monitor_of("podMonitor")
        validate(objects)
        assert by_service["endpoints"] == by_pod["podMetricsEndpoints"], mode
        wanted = by_service["selector"]["matchLabels"].items()
        (service,) = [one for one in objects if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()]
        assert service["spec"]["selector"] == by_pod["selector"]["matchLabels"], mode
        (port,) = service["spec"]["ports"]
        assert (service["spec"]["clusterIP"], port["name"], port["targetPort"]) == ("None", "admin", "admin"), service


def rules_of_the_chart_are_valid_with_a_budget():
    (rule,) = [one for one in documents(template(CHART, "--values", CHART / "ci/sidecar.yaml")) if one["kind"] == "PrometheusRule"]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(yaml.safe_dump(rule["spec"]))
        file.flush()
        output("promtool", "check", "rules", file.name)
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert all(one["annotations"]["runbook_url"].startswith("https://example.com/plimsoll/docs/runbooks.md#") for one in alerts)
    assert rule["spec"]["groups"][-1]["rules"] == [{"record": "plimsoll:budget_dollars_per_day", "expr": "vector(100)"}]


def network_policy_of_fleet_names_both_directions():
    objects = documents(template(CHART, "--values", CHART / "ci/fleet.yaml"))
    (policy,) = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    assert by_port.keys() == {9797, "clients"} and all(by_port.values()), "a rule without peers lets everybody in"
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 443, 6379, 4317], policy["egress"]
    assert all(rule["to"] for rule in policy["egress"]), "a rule without peers lets everything out"


def collector_knows_the_pod():
    """Sums of two replicas that look alike would replace each other."""
    for version, values in ((version, values) for version in KUBERNETES_VERSIONS[::6] for values in values_files()):
        objects = documents(template(CHART, "--values", values, "--set", "otel.endpoint=https://collector.example.com", version=version))
        for pod in pods(objects):
            (container,) = pod["containers"]
            env = {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
            assert len(env) == len(container["env"]), "a variable is set twice"
            attributes = dict(pair.split("=") for pair in env["OTEL_RESOURCE_ATTRIBUTES"].split(","))
            assert attributes["service.instance.id"] == "$(POD_UID)" and env["POD_UID"] == "metadata.uid", attributes
            assert attributes["k8s.pod.name"] == "$(POD_NAME)" and env["POD_NAME"] == "metadata.name", attributes
            # Kubernetes replaces $(NAME) only if NAME comes before it.
            names = list(env)
            used = re.findall(r"\$\((\w+)\)", env["OTEL_RESOURCE_ATTRIBUTES"])
            assert all(names.index(name) < names.index("OTEL_RESOURCE_ATTRIBUTES") for name in used), names


def manifests_are_rendered_from_the_chart():
    output(sys.executable, ROOT / "scripts/manifests", "--check")


def kustomize_builds_valid_objects():
    for folder in ("base", "overlays/fleet"):
        objects = documents(output(TOOLS / "kubectl", "kustomize", DEPLOY / "kustomize" / folder))
        # preStop.sleep came with 1.30.
        validate(objects, KUBERNETES_VERSIONS[1:])
    assert "HorizontalPodAutoscaler" in [one["kind"] for one in objects]
    (workload,) = [one for one in objects if one["kind"] == "Deployment"]
    assert "replicas" not in workload["spec"], "the autoscaler and the manifest both decide"


def kustomize_component_adds_the_sidecar():
    """A pod with containers and volumes of its own keeps them."""
    app = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app", "labels": {"plimsoll": "sidecar"}},
           "spec": {"selector": {"matchLabels": {"app": "app"}}, "template": {"metadata": {"labels": {"app": "app"}}, "spec": {
               "initContainers": [{"name": "migrate", "image": "m:1"}],
               "containers": [{"name": "main", "image": "a:1", "env": [{"name": "KEY", "value": "x"}]}],
               "volumes": [{"name": "scratch", "emptyDir": {}}]}}}}
    other = {**app, "metadata": {"name": "other"}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(DEPLOY / "kustomize/components/sidecar", folder / "sidecar")
        (folder / "app").mkdir()
        (folder / "app/app.yaml").write_text(yaml.safe_dump_all([app, other]))
        (folder / "app/kustomization.yaml").write_text("resources: [app.yaml]\ncomponents: [../sidecar]\n")
        objects = documents(output(TOOLS / "kubectl", "kustomize", folder / "app"))
    validate(objects)
    with_sidecar, without = (next(one for one in objects if one["metadata"]["name"] == name) for name in ("app", "other"))
    assert without["spec"] == other["spec"], "a Deployment without the label was changed"
    pod = with_sidecar["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["initContainers"]] == ["plimsoll", "migrate"], "Plimsoll must be first"
    names = [variable["name"] for variable in pod["containers"][0]["env"]]
    assert names == ["KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"]
    assert {volume["name"] for volume in pod["volumes"]} == {"scratch", "plimsoll-data", "secret-plimsoll-admin"}


def checkov_finds_nothing():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for values in values_files():
            (folder / values.name).write_text(template(CHART, "--values", values))
        for file in (DEPLOY / "kubernetes").glob("*.yaml"):
            # Where `kubectl apply -n` puts them: the default namespace is a finding of its own.
            objects = documents(file.read_text())
            for one in objects:
                one["metadata"]["namespace"] = "agents"
            (folder / file.name).write_text(yaml.safe_dump_all(objects))
        # It asks the network for updates and would wait for it: a proxy that refuses is quick.
        env = os.environ | {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
        done = run(TOOLS / "checkov", "--directory", folder, "--config-file", DEPLOY / "checkov.yaml", "--compact", "--quiet",
                   "--skip-download", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"Passed checks: (\d+), Failed checks: 0", done.stdout)
    assert passed and int(passed[1]) > 200, done.stdout


def version_of_the_chart_is_that_of_the_program():
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    (dependency,) = yaml.safe_load((DEPLOY / "helm/examples/agent/Chart.yaml").read_text())["dependencies"]
    assert dependency["version"] == version


CHECKS = (
    chart_is_linted_and_valid_on_each_version, example_agent_includes_the_sidecar, example_agent_can_run,
    contradictions_are_refused_with_the_reason,
    every_name_of_a_secret_makes_a_volume, change_of_configuration_replaces_pods, fleet_keeps_clients_at_one_replica, fleet_with_a_server_is_spread, rendered_rules_and_dashboards_are_those_of_deploy,
    service_monitor_reads_what_the_pod_monitor_does, rules_of_the_chart_are_valid_with_a_budget,
    network_policy_of_fleet_names_both_directions, collector_knows_the_pod, manifests_are_rendered_from_the_chart, kustomize_builds_valid_objects,
    kustomize_component_adds_the_sidecar, checkov_finds_nothing, version_of_the_chart_is_that_of_the_program,
)
