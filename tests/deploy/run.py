"""Checks the files in deploy/: alerting rules and their tests, the chart and Kubernetes objects, the compose file, the
image, and the dashboard. A real Prometheus scrapes Plimsoll's demo, and every query of the dashboard must return data.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

import yaml

import charts
import compose
import peers
import releases
import roll
from charts import KUBERNETES_VERSIONS
from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BINARY = pathlib.Path(os.environ.get("PLIMSOLL_BINARY", ROOT / "target/debug/plimsoll"))
# Refuses what real providers refuse.
STRICT_PROVIDER = ROOT / "target/debug/examples/strict-provider"
TIMEOUT_S = 60
# The values of the dashboard's variables when the queries run.
VARIABLES = {"$__rate_interval": "30s", "$job": ".*", "$instance": ".*", "$upstream": ".*", "$model": ".*"}
DASHBOARDS = ("plimsoll", "plimsoll-fleet")
# What panels say where nothing turns on or tells what they show.
WITHOUT_DATA = {
    "Cache misses explained": "Needs cache.diagnose, or a client that asks",
    "Reasoning withheld": "No provider withheld any",
    "Providers' limits": "No provider says its limits",
    "Turns for the warehouse": "Needs warehouse",
}
# What must have happened, so that panels show more than zeros.
EXERCISED = (
    'plimsoll_edits_total{kind="cut",decision="new",mode="active"}', 'plimsoll_edits_total{kind="put_back"}',
    'plimsoll_compactions_total{outcome="written"}', "plimsoll_overflows_total", "plimsoll_fail_open_total",
)
# What some panels need. No collector is there.
CONFIG = """
metrics_tags = ["team"]
warehouse = "%s"
cap.daily = {of = "all", dollars = 100}
otel.endpoint = "http://127.0.0.1:9"
upstream.talkative.base_url = "%s"
"""
# Tokens that fit the window of the strict provider.
WINDOW = 20_000
PROMETHEUS = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: plimsoll
    static_configs: [{targets: ["%s"]}]
  - job_name: with-token
    authorization: {credentials_file: %s}
    static_configs: [{targets: ["%s"]}]
"""


def promtool(*args, **options):
    done = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules_are_valid_and_tested():
    promtool("check", "rules", DEPLOY / "prometheus/rules.yml")
    promtool("check", "config", DEPLOY / "prometheus/prometheus.yml")
    promtool("test", "rules", "rules_test.yml", cwd=DEPLOY / "prometheus")


def every_alert_has_a_runbook():
    """A section of docs/runbooks.md, and no section is left over."""
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    sections = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.M)
    assert sections == list(alerts), "other sections than alerts, or another order"
    for name, alert in alerts.items():
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}", name


def rules_and_dashboards_use_existing_metrics():
    table = (ROOT / "docs/metrics.md").read_text()
    for file in ("prometheus/rules.yml", *(f"grafana/{name}.json" for name in DASHBOARDS)):
        for name in set(re.findall(r"\bplimsoll_[a-z_]+\b(?!:)", (DEPLOY / file).read_text())):
            if re.search(rf":{name}:", (DEPLOY / file).read_text()):
                continue
            metric = re.sub(r"_(bucket|sum|count)$", "", name)
            assert re.search(rf"`{metric}[`{{]", table), f"{file} uses {name}, which is not in docs/metrics.md"


def get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


def wait_for(what, condition):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if result := condition():
                return result
        except OSError:
            pass
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.1)


class Monitoring:
    """A context manager: Plimsoll's demo, Plimsoll as people run it, and a Prometheus that scrapes both."""

    def __enter__(self):
        self.children, self.peers = [], contextlib.ExitStack()
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def start(self):
        self.folder = tempfile.TemporaryDirectory(prefix="plimsoll-deploy-")
        env = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
        self.demo = subprocess.Popen([BINARY, "demo", "--full", "--keep"], stdout=subprocess.PIPE, text=True, env=env)
        self.children.append(self.demo)
        self.clients = self.admin = None
        for line in self.demo.stdout:
            if found := re.search(r"clients (http://\S+) +admin (http://\S+)", line):
                self.clients, self.admin = found.groups()
            if "Still serving" in line:
                break
        folder = pathlib.Path(self.folder.name)
        port = free_port()
        config = folder / "prometheus.yml"
        # As people run it: reading its metrics needs the read token.
        strict = subprocess.Popen([STRICT_PROVIDER, "127.0.0.1:0", str(WINDOW)], stdout=subprocess.PIPE, text=True)
        self.children.append(strict)
        provider = re.search(r"http://\S+", strict.stdout.readline())[0]
        warehouse, talkative = (self.peers.enter_context(peer()) for peer in (peers.postgres, peers.talkative_provider))
        (folder / "plimsoll.toml").write_text(CONFIG % (warehouse, talkative))
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", folder / "serve",
                   "--config", folder / "plimsoll.toml", "--upstream", f"anthropic={provider}"]
        serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env | {"OTEL_METRIC_EXPORT_INTERVAL": "1000"})
        self.children.append(serve)
        self.serve_clients, self.serve_admin = re.search(r"on (http://\S+) \(admin http://([^/)]+)", serve.stdout.readline()).groups()
        rules, demo_admin = DEPLOY / "prometheus/rules.yml", self.admin.removeprefix("http://")
        config.write_text(PROMETHEUS % (rules, demo_admin, folder / "serve/read.token", self.serve_admin))
        self.prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        )
        self.children.append(self.prometheus)
        self.url = f"http://127.0.0.1:{port}"
        wait_for("Prometheus to scrape the demo", lambda: self.query('up{job="plimsoll"} == 1'))
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
        self.peers.close()
        self.folder.cleanup()

    def query(self, expression):
        response = json.loads(get(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert response["status"] == "success", response
        return response["data"]["result"]

    def send_request(self):
        """One more exchange, so that counters grow between scrapes."""
        self.send([{"role": "user", "content": f"Say {time.monotonic()}"}])

    def send_large_history(self):
        """One more exchange. Its tool results fill the window, so that old ones are cut."""
        messages = [{"role": "user", "content": "Read them all."}]
        for number in range(8):
            call = f"toolu_01AbCdEfGh{number:04}"
            use = {"type": "tool_use", "id": call, "name": "Read", "input": {"path": number}}
            text = f"Line {number} of a long log, as it was written. " * 2200
            messages += [{"role": "assistant", "content": [use]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}]
        messages[-1]["content"].append({"type": "text", "text": f"Say {time.monotonic()}"})
        self.send(messages, "claude-sonnet-4-5")

    def send_what_does_not_fit(self):
        """More than the strict provider's window, in one message, of which nothing can be cut."""
        self.send([{"role": "user", "content": "one two three four " * WINDOW}], base=self.serve_clients)

    def send_broken_request(self):
        """It passes unread, and its provider refuses it."""
        self.post(b'{"model":', self.serve_clients)

    def send(self, messages, model="claude-sonnet-4-6", base=None):
        body = {"model": model, "max_tokens": 50, "stream": True,
                "system": [{"type": "text", "text": "Speak plainly. " * 400, "cache_control": {"type": "ephemeral"}}],
                "messages": messages}
        self.post(json.dumps(body).encode(), base or self.clients)

    def post(self, body, base):
        request = urllib.request.Request(
            f"{base}/v1/messages", body,
            {"content-type": "application/json", "x-api-key": "none", "anthropic-version": "2023-06-01",
             "x-claude-code-request-class": "main", "x-plimsoll-tags": "team=core"},
        )
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read()


def metrics_are_well_formed(monitoring):
    output = promtool("check", "metrics", input=get(f"{monitoring.admin}/metrics"))
    assert not output.strip(), output


def metrics_need_the_read_token(monitoring):
    try:
        get(f"http://{monitoring.serve_admin}/metrics")
    except urllib.error.HTTPError as error:
        assert error.code == 401, error
    else:
        raise AssertionError("metrics were served without a token")
    wait_for("Prometheus to scrape with its credentials file", lambda: monitoring.query('up{job="with-token"} == 1'))


def every_panel_has_data(monitoring):
    scrapes = 'count_over_time(up{job="plimsoll"}[1m])'
    first = float(monitoring.query(scrapes)[0]["value"][1])
    monitoring.send([{"role": "user", "content": "Hello"}], "a-model-without-a-price", monitoring.serve_clients)
    monitoring.send([{"role": "user", "content": "Hello"}], base=f"{monitoring.serve_clients}/talkative")
    monitoring.send_what_does_not_fit()
    monitoring.send_broken_request()
    while float(monitoring.query(scrapes)[0]["value"][1]) < first + 8:
        monitoring.send_request()
        monitoring.send_large_history()
    deadline = time.monotonic() + TIMEOUT_S
    while empty := {title: expression for title, expression in queries() if not monitoring.query(expression)}:
        assert time.monotonic() < deadline, f"without data: {empty}"
        monitoring.send_request()
    for series in EXERCISED:
        result = monitoring.query(f"sum({series})")
        assert result and float(result[0]["value"][1]) > 0, f"{series} is 0, so its panels had nothing to show"


def queries():
    """All of the dashboards, with the title of their panel."""
    for name in DASHBOARDS:
        board = dashboard(name)
        for panel in panels(board):
            for target in panel["targets"]:
                yield panel["title"], with_variables(target["expr"])
        for annotation in board["annotations"]["list"]:
            yield annotation["name"], with_variables(annotation["expr"])


def with_variables(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, f"unknown variable in {expression}"
    return expression


def dashboard(name):
    return json.loads((DEPLOY / f"grafana/{name}.json").read_text())


def panels(board):
    """Those of closed rows stand inside the row."""
    for panel in board["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


def dashboards_are_rendered_from_their_source():
    charts.output(sys.executable, ROOT / "scripts/dashboards", "--check")


def dashboards_follow_the_rules():
    said = {}
    for name in DASHBOARDS:
        board = dashboard(name)
        assert board["uid"] == name, name
        variables = [variable["name"] for variable in board["templating"]["list"]]
        assert variables == ["datasource", "job", "instance", "upstream", "model"], variables
        rows = [panel for panel in board["panels"] if panel["type"] == "row"]
        assert [row["collapsed"] for row in rows] == [False] + [True] * (len(rows) - 1), f"{name}: which rows are open"
        ids = [panel["id"] for panel in [*rows, *panels(board)]]
        assert len(ids) == len(set(ids)), f"{name}: two panels have the same id"
        for panel in panels(board):
            panel_follows_the_rules(panel)
            said[panel["title"]] = panel["fieldConfig"]["defaults"].get("noValue")
    assert WITHOUT_DATA.items() <= said.items(), WITHOUT_DATA.items() - said.items()


def panel_follows_the_rules(panel):
    title, unit = panel["title"], panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"] and panel["datasource"]["uid"] == "${datasource}", title
    assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, f"{title}: wider than the page"
    for target in panel["targets"]:
        expression = target["expr"]
        assert 'job=~"$job",instance=~"$instance"' in expression, f"{title}: does not filter by job and instance"
        assert "vector(" not in expression, f"{title}: a 0 where nothing was measured"
        assert target["legendFormat"], f"{title}: no legend"
        for window in re.findall(r"rate\([^[]+\[([^]]+)\]", expression):
            assert window == "$__rate_interval", f"{title}: rate over {window}"
        if re.match(r"sum( by \(.*?\))? ?\(rate\(plimsoll_\w+_tokens_total", expression) and " / " not in expression:
            assert unit == "count:tokens/s", f"{title}: {unit}"
        assert ("* 3600" in expression and "dollars" in expression) == (unit == "suffix:$/h"), f"{title}: {unit}"


def kubernetes_objects_are_valid():
    import kubernetes_validate

    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] in charts.OPERATOR:
                continue
            # The sleep before a replica of the fleet ends came with 1.30.
            for version in KUBERNETES_VERSIONS[int(file.name == "fleet.yaml"):]:
                kubernetes_validate.validate(document, version, strict=True)
            if document["kind"] != "Deployment":
                continue
            pod = document["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            for container in pod["containers"] + pod.get("initContainers", []):
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], container["name"]
                assert context["capabilities"]["drop"] == ["ALL"], container["name"]
                assert container["resources"]["limits"]["memory"], container["name"]
            plimsoll = plimsoll_of(document)
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= plimsoll.keys()
            native = "initContainers" in pod
            assert (plimsoll.get("restartPolicy") == "Always") == native, "a native sidecar needs restartPolicy Always"


def network_policy_opens_the_admin_port_to_prometheus_alone():
    import kubernetes_validate

    policy = yaml.safe_load((DEPLOY / "kubernetes/network-policy.yaml").read_text())
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(policy, version, strict=True)
    agent = yaml.safe_load((DEPLOY / "kubernetes/native-sidecar.yaml").read_text())
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items(), "it selects no pod of the example"
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [9797], rule
    (source,) = rule["from"]
    assert {"namespaceSelector", "podSelector"} <= source.keys(), "a whole namespace could reach the port"


def pod_monitor_reads_the_metrics_of_the_example():
    # No schema of the operator's own kind is here, so what it refers to is checked.
    monitor = yaml.safe_load((DEPLOY / "kubernetes/pod-monitor.yaml").read_text())
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor"), monitor
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics", endpoint
    secret = endpoint["authorization"]["credentials"]
    for file in (DEPLOY / "kubernetes").glob("*sidecar.yaml"):
        agent = yaml.safe_load(file.read_text())
        labels = agent["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items(), f"it selects no pod of {file.name}"
        plimsoll = plimsoll_of(agent)
        assert endpoint["port"] in [port["name"] for port in plimsoll["ports"]], f"no such port in {file.name}"
        read_token = variables_of(agent)["PLIMSOLL_ADMIN_READ_TOKEN"]
        assert read_token == f"file:/secrets/{secret['name']}/{secret['key']}", f"not the read token of {file.name}"


def configuration_of_image_and_manifests_is_valid():
    """`plimsoll check` has no error or warning for the environment that the image and the manifests set."""
    image = dict(re.findall(r"(PLIMSOLL_[A-Z_]+)=(\S+)", re.search(r"^ENV (PLIMSOLL.*)$", (ROOT / "Dockerfile").read_text(), re.M)[1]))
    assert image["PLIMSOLL_LISTEN"] == "0.0.0.0:8787" and image["PLIMSOLL_DATA"] == "/data"
    check_configuration(image)
    for file in (DEPLOY / "kubernetes").glob("*sidecar.yaml"):
        verdict = check_configuration(image | variables_of(yaml.safe_load(file.read_text())))
        assert verdict["listen"].startswith("127.0.0.1:"), "only containers of the same pod may connect"


def configuration_of_chart_is_valid():
    for values in charts.values_files():
        objects = charts.documents(charts.template(charts.CHART, "--values", values))
        config = next((one["data"]["plimsoll.toml"] for one in objects if "plimsoll.toml" in one.get("data", {})), "")
        for workload in (one for one in objects if one["kind"] in ("Deployment", "StatefulSet")):
            verdict = check_configuration(variables_of(workload), config)
            assert verdict["listen"].startswith("0.0.0.0:"), values.name


def variables_of(workload):
    """Those that Kubernetes fills in are of a pod that nobody started."""
    return {entry["name"]: entry.get("value", "of-the-pod") for entry in plimsoll_of(workload)["env"]}


def check_configuration(settings, config=""):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | settings
    # The volumes do not exist here: a temporary folder replaces them.
    server = shared_server() if "PLIMSOLL_STORE_URL" in settings else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="plimsoll-deploy-") as name, server as url:
        folder = pathlib.Path(name)
        for file in re.findall(r"/secrets/[\w./-]+", " ".join([*settings.values(), config])):
            secret = folder / file.lstrip("/")
            secret.parent.mkdir(parents=True, exist_ok=True)
            secret.touch(0o600)
            secret.write_text(url if secret.name == "url" else f"a secret of this test, {secret.name}")
            if secret.suffix in (".crt", ".key"):
                certify(secret.parent)
        env = {key: value.replace("/secrets/", f"{folder}/secrets/") for key, value in env.items()}
        env["PLIMSOLL_DATA"] = name
        env["PLIMSOLL_CONFIG"] = f"{folder}/plimsoll.toml"
        pathlib.Path(env["PLIMSOLL_CONFIG"]).write_text(config.replace("/secrets/", f"{folder}/secrets/"))
        done = subprocess.run([BINARY, "check", "--json"], env=env, capture_output=True, text=True, cwd="/")
    verdict = json.loads(done.stdout)
    assert verdict["ok"] and not verdict["warnings"], verdict
    return verdict


@contextlib.contextmanager
def shared_server():
    """The address of a real server, as the secret of a fleet names it."""
    folder = ROOT / ".tools/fleet/valkey"
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="plimsoll-deploy-") as data:
        arguments = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", data]
        server = subprocess.Popen([folder / "valkey-server", *arguments], env={"LD_LIBRARY_PATH": str(folder)}, stdout=subprocess.DEVNULL)
        try:
            ends = time.monotonic() + TIMEOUT_S
            while time.monotonic() < ends:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def certify(folder):
    """A certificate and its key, as a secret of type kubernetes.io/tls has them."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                    "-subj", "/CN=plimsoll", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
                   check=True, capture_output=True)


def plimsoll_of(deployment):
    pod = deployment["spec"]["template"]["spec"]
    return next(c for c in pod.get("initContainers", []) + pod["containers"] if c["name"] == "plimsoll")


def compose_is_hardened():
    plimsoll = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["plimsoll"]
    assert plimsoll["read_only"] and plimsoll["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in plimsoll["ports"]), "a port is reachable from outside this host"
    assert any(volume.endswith(":/data") for volume in plimsoll["volumes"])
    check_configuration({"PLIMSOLL_DATA": "/data"} | plimsoll["environment"])
    assert plimsoll["healthcheck"]["test"] == ["CMD", "/plimsoll", "healthcheck"]


def prometheus_of_compose_is_reachable():
    """Prometheus shares Plimsoll's network, so Plimsoll's service must publish its port."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    network = services["prometheus"]["network_mode"].removeprefix("service:")
    assert any(port.endswith(":9090") for port in services[network]["ports"]), services[network]["ports"]


def image_version_is_the_same_everywhere():
    """Documents build the image with the version of Cargo.toml, and manifests run that image."""
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    image = f"plimsoll:{version}"
    for file in ("Dockerfile", "docs/deploying.md"):
        built = re.findall(r"docker build .*-t (\S+) \.", (ROOT / file).read_text())
        assert built and set(built) == {image}, f"{file} builds {built}, not {image}"
    run = re.search(r"docker run .*", (ROOT / "Dockerfile").read_text())[0]
    assert run.endswith(f" {image}"), run
    drain = int(re.search(r"^#?\s*drain_s = (\d+)", (ROOT / "config/default.toml").read_text(), re.M)[1])
    assert int(re.search(r"--stop-timeout (\d+)", run)[1]) > drain, "the stop timeout is too short for draining"
    for file in (DEPLOY / "kubernetes").glob("*sidecar.yaml"):
        assert plimsoll_of(yaml.safe_load(file.read_text()))["image"] == image, file
    assert yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["plimsoll"]["image"] == image
    assert yaml.safe_load((DEPLOY / "compose-fleet.yaml").read_text())["x-replica"]["image"] == image


def user_of_the_image_owns_only_the_data_folder():
    text = (ROOT / "Dockerfile").read_text()
    copies = [line for line in text.split("FROM scratch")[-1].splitlines() if line.startswith("COPY")]
    owned = [line for line in copies if "--chown" in line]
    assert len(copies) == 2 and len(owned) == 1 and owned[0].endswith(" /out/volume/ /"), copies
    assert "/tmp" not in text, "the image needs no folder for temporary files"


def main():
    passed, failed = [], []

    def run(check, *args):
        start = time.monotonic()
        try:
            check(*args)
        except Exception:
            failed.append(check.__name__)
            print(f"FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
        else:
            passed.append(check.__name__)
            print(f"ok {check.__name__} ({time.monotonic() - start:.1f} s)", flush=True)

    def run_all(checks):
        for check in checks:
            run(check)

    # Most of them wait for other programs.
    groups = [threading.Thread(target=run_all, args=(checks,)) for checks in (CHECKS, charts.CHECKS, compose.CHECKS, releases.CHECKS, roll.CHECKS)]
    for group in groups:
        group.start()
    try:
        with Monitoring() as monitoring:
            run(metrics_are_well_formed, monitoring)
            run(metrics_need_the_read_token, monitoring)
            run(every_panel_has_data, monitoring)
    except Exception:
        failed.append("Monitoring")
        print(f"FAILED to start Prometheus and the demo\n{traceback.format_exc()}", flush=True)
    for group in groups:
        group.join()
    releases.remove_release()
    print(f"deploy: {len(passed)} passed, {len(failed)} failed", *failed, flush=True)
    return 1 if failed else 0


CHECKS = (
    rules_are_valid_and_tested, every_alert_has_a_runbook, rules_and_dashboards_use_existing_metrics,
    dashboards_are_rendered_from_their_source, dashboards_follow_the_rules,
    kubernetes_objects_are_valid, network_policy_opens_the_admin_port_to_prometheus_alone,
    pod_monitor_reads_the_metrics_of_the_example, configuration_of_image_and_manifests_is_valid, compose_is_hardened,
    prometheus_of_compose_is_reachable, image_version_is_the_same_everywhere,
    user_of_the_image_owns_only_the_data_folder, configuration_of_chart_is_valid,
)

sys.exit(main())
