"""Checks what makes a release: the workflows, and the scripts that they call, run here with a stand-in for the program.
What only the release's own machines can do (other systems, registries, signatures) is not run.
"""

import contextlib
import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading

import yaml

from charts import ROOT, TOOLS, documents, output, run

REPOSITORY = "example/plimsoll"
TARGET = "x86_64-unknown-linux-musl"
STAND_IN = """#!/bin/sh
case "$1" in
    --version) echo "plimsoll @VERSION@" ;;
    man) echo .ie; echo manual ;;
    completions) echo "completions for $2" ;;
    fail) exit 7 ;;
    *) echo "$@" ;;
esac
"""


def version():
    return output(ROOT / "scripts/version", "number").strip()


@functools.cache
def release():
    """A release of one target in a copy of the project, made by the scripts."""
    copy = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-release-")) / "project"
    copy.mkdir()
    for name in ("Cargo.toml", "LICENSE", "README.md", "CHANGELOG.md", "scripts", "packaging", "deploy", "Dockerfile", "src/admin/ui/uplot.LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True)
        else:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy / name)
    (copy / ".tools").symlink_to(ROOT / ".tools")
    program = copy / "stand-in"
    program.write_text(STAND_IN.replace("@VERSION@", version()))
    program.chmod(0o755)
    env = os.environ | {"GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
    for command in (["init", "--quiet"], ["add", "--all", "."], ["-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "--quiet", "--message=x"]):
        output("git", *command, cwd=copy, env=env)
    output("scripts/release/archive", TARGET, "stand-in", cwd=copy)
    env["SOURCE_URL"] = f"https://github.com/{REPOSITORY}"
    output("scripts/release/chart", "registry.example.com/plimsoll", cwd=copy, env=env)
    output(sys.executable, "scripts/release/packages", REPOSITORY, cwd=copy)
    return copy


def dist():
    return release() / "dist"


def workflows_are_valid():
    done = run("node", ROOT / "tests/deploy/workflows/check.mjs")
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    output(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    done = run(TOOLS / "zizmor", "--offline", "--no-progress", "--min-severity=low", ROOT / ".github/workflows")
    assert done.returncode == 0, done.stdout + done.stderr


def workflows_call_existing_scripts_and_pinned_actions():
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        text = file.read_text()
        for script in re.findall(r"(?<![\w/])scripts/[\w/]+", text):
            assert os.access(ROOT / script, os.X_OK), f"{file.name} calls {script}"
        for action in re.findall(r"uses: (\S+)", text):
            assert re.search(r"@[0-9a-f]{40}$", action), f"{file.name}: {action} can change"
        names = set(re.findall(r"scripts/test ([a-z -]+)", text)) | {tiers for job in yaml.safe_load(text)["jobs"].values()
                for tiers in job.get("strategy", {}).get("matrix", {}).get("tiers", [])}
        known = re.search(r"^all=\((.*)\)", (ROOT / "scripts/test").read_text(), re.M)[1].split()
        assert {tier for some in names for tier in some.split()} <= set(known), f"{file.name}: an unknown tier in {names}"


def version_has_commit_and_date():
    assert re.fullmatch(r"\d+\.\d+\.\d+ \([0-9a-f]{7,} \d{4}-\d\d-\d\d\)\n", output(ROOT / "scripts/version"))
    done = run(ROOT / "scripts/version", "check", "v9.9.9")
    assert done.returncode == 1 and "the tag v9.9.9" in done.stdout, done.stdout


def archive_is_the_same_in_a_second_run():
    first = (dist() / f"plimsoll-{version()}-{TARGET}.tar.gz").read_bytes()
    output("scripts/release/archive", TARGET, "stand-in", cwd=release())
    assert (dist() / f"plimsoll-{version()}-{TARGET}.tar.gz").read_bytes() == first
    with tarfile.open(dist() / f"plimsoll-{version()}-{TARGET}.tar.gz") as archive:
        names = {entry.name.split("/", 1)[-1] for entry in archive.getmembers()}
        assert {(entry.uid, entry.uname) for entry in archive.getmembers()} == {(0, "")}
    assert {"plimsoll", "LICENSE", "plimsoll.1", "completions/plimsoll.zsh"} <= names, names


def checksums_name_every_file():
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist())
    named = {line.split()[1] for line in (dist() / "SHA256SUMS").read_text().splitlines()}
    assert {file.name for file in dist().iterdir() if file.is_file()} == named | {"SHA256SUMS"}


@contextlib.contextmanager
def server(folder):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=folder)) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def install(url, home):
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PLIMSOLL_FROM": url}
    return run("sh", dist() / "install.sh", env=env)


def install_script_verifies_the_checksum():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with server(dist()) as url:
            done = install(url, folder / "good")
        assert done.returncode == 0, done.stderr
        program = folder / "good/.local/bin/plimsoll"
        assert output(program, "--version") == f"plimsoll {version()}\n"
        # One byte more.
        (folder / "bad").mkdir()
        archive = f"plimsoll-{version()}-{TARGET}.tar.gz"
        (folder / "bad" / archive).write_bytes((dist() / archive).read_bytes() + b"x")
        with server(folder / "bad") as url:
            done = install(url, folder / "other")
        assert done.returncode == 1 and "nothing was installed" in done.stderr, done.stderr
        assert not (folder / "other/.local/bin/plimsoll").exists()
        with server(folder) as url:
            done = install(url, folder / "other")
        assert done.returncode == 1 and "cannot download" in done.stderr, done.stderr


def npm_package_runs_the_program():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "package.json").write_text("{}")
        packages = [dist() / f"npm/plimsoll-linux-x64-{version()}.tgz", dist() / f"npm/plimsoll-{version()}.tgz"]
        output("npm", "install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", folder / "cache", *packages, cwd=folder)
        assert output("npx", "--offline", "plimsoll", "run", "--", "claude", cwd=folder) == "run -- claude\n"
        assert run("npx", "--offline", "plimsoll", "fail", cwd=folder).returncode == 7
        # Provenance is refused if it is another repository than that of the workflow.
        about = json.loads((folder / "node_modules/plimsoll/package.json").read_text())
        assert about["repository"] == {"type": "git", "url": f"git+https://github.com/{REPOSITORY}.git"}, about
        shutil.rmtree(folder / "node_modules/plimsoll-linux-x64")
        done = run("npx", "--offline", "plimsoll", "run", cwd=folder)
        assert done.returncode == 1 and "there is no binary" in done.stderr, done.stderr


def wheel_installs_the_program():
    (wheel,) = (dist() / "pypi").glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        output(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--prefix", folder, wheel)
        (program,) = pathlib.Path(folder).rglob("bin/plimsoll")
        assert output(program, "--version") == f"plimsoll {version()}\n"


def debian_package_has_program_and_unit():
    (package,) = dist().glob("*.deb")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        output("dpkg-deb", "--extract", package, folder)
        assert output(folder / "usr/bin/plimsoll", "--version") == f"plimsoll {version()}\n"
        unit = (folder / "usr/lib/systemd/system/plimsoll.service").read_text()
        about = output("dpkg-deb", "--field", package)
        assert f"Version: {version()}" in about and "Architecture: amd64" in about, about
        # The commit's date: a second run makes the same package.
        listed = output("dpkg-deb", "--contents", package, env=os.environ | {"TZ": "UTC"})
        assert all(" 2026-01-02 03:04 " in line for line in listed.splitlines()), listed
        drain = int(re.search(r"drain_s = (\d+)", (ROOT / "config/default.toml").read_text())[1])
        assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > drain, "too short for draining"
        if shutil.which("systemd-analyze"):
            # Where the program is here; only the unit's own lines count.
            here = folder / "plimsoll.service"
            here.write_text(unit.replace("/usr/bin/plimsoll", str(folder / "usr/bin/plimsoll")))
            done = run("systemd-analyze", "verify", "--recursive-errors=no", "--man=no", here)
            assert "plimsoll.service" not in done.stderr, done.stderr


def formula_and_flake_have_the_checksums():
    archive = dist() / f"plimsoll-{version()}-{TARGET}.tar.gz"
    checksum = output("sha256sum", archive).split()[0]
    for name in ("plimsoll.rb", "flake.nix", "install.sh"):
        text = (dist() / name).read_text()
        assert checksum in text and version() in text and f"github.com/{REPOSITORY}" in text, name
    if shutil.which("ruby"):
        output("ruby", "-c", dist() / "plimsoll.rb")
    if shutil.which("nix-instantiate"):
        output("nix-instantiate", "--parse", dist() / "flake.nix")


def released_chart_names_the_released_image():
    package = dist() / f"plimsoll-{version()}.tgz"
    (workload,) = [one for one in documents(output(TOOLS / "helm", "template", "plimsoll", package)) if one["kind"] == "Deployment"]
    assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == f"registry.example.com/plimsoll:{version()}"
    rules = output(TOOLS / "helm", "template", "plimsoll", package, "--set", "monitoring.prometheusRule.enabled=true")
    assert f"https://github.com/{REPOSITORY}/blob/v{version()}/docs/runbooks.md#plimsolldown" in rules


def image_script_gives_each_platform_its_program():
    """With a stand-in for docker, which writes down what it is asked and which program lies ready."""
    copy = release()
    for cpu in ("x86_64", "aarch64"):
        program = copy / f"program-{cpu}"
        program.write_text(STAND_IN + f"# {cpu}\n")
        program.chmod(0o755)
        output("scripts/release/archive", f"{cpu}-unknown-linux-musl", program.name, cwd=copy)
    with tempfile.TemporaryDirectory() as name:
        docker = pathlib.Path(name, "docker")
        docker.write_text(f'#!/bin/sh\necho "$*" >>{name}/log\ntail -1 target/image/program/plimsoll >>{name}/log\n'
                          'case "$*" in *inspect*) echo sha256:abc ;; esac\n')
        docker.chmod(0o755)
        digest = output("scripts/release/image", "registry.example.com/plimsoll", cwd=copy,
                        env=os.environ | {"PATH": f"{name}:{os.environ['PATH']}"})
        log = pathlib.Path(name, "log").read_text().splitlines()
    assert digest == "sha256:abc\n"
    assert "--platform linux/amd64" in log[0] and log[1] == "# x86_64", log[:2]
    assert "--platform linux/arm64" in log[2] and log[3] == "# aarch64", log[2:4]
    assert all("--sbom=true --provenance=mode=max" in log[line] for line in (0, 2)), log
    tag = f"registry.example.com/plimsoll:{version()}"
    assert log[4] == f"buildx imagetools create --tag {tag} {tag}-amd64 {tag}-arm64", log[4]


def dockerfile_is_linted():
    # DL3008: the build stage takes the compiler that its pinned base image has; its packages are in no final image.
    output(TOOLS / "hadolint", "--ignore", "DL3008", ROOT / "Dockerfile")


def what_is_published_can_be_verified():
    """docs/releasing.md names what the workflow signs, with its own identity, and attests."""
    workflow, said = (ROOT / ".github/workflows/release.yml").read_text(), (ROOT / "docs/releasing.md").read_text()
    assert ".github/workflows/release.yml@refs/tags/v" in said and "tags: [\"v*\"]" in workflow
    for name, place in (("IMAGE", "plimsoll"), ("CHART", "charts/plimsoll")):
        assert f"{name}: ghcr.io/${{{{ github.repository_owner }}}}/{place}\n" in workflow, name
        assert f"ghcr.io/OWNER/{place}:VERSION" in said, place
        assert f'cosign sign --yes "${name}@${name.lower()}"' in workflow, f"{name} is not signed"
        attested = f'{{subject-name: "${{{{ env.{name} }}}}", subject-digest: "${{{{ steps.pushed.outputs.{name.lower()} }}}}", push-to-registry: true}}'
        assert attested in workflow, f"{name} is not attested"
    for command in ("cosign verify-blob SHA256SUMS", "cosign verify ghcr.io", "sha256sum --check", "gh attestation verify oci://"):
        assert command in said, command


def binstall_finds_the_archive():
    metadata = re.search(r"^\[package\.metadata\.binstall\]\n((?:.+\n)+)", (ROOT / "Cargo.toml").read_text(), re.M)[1]
    url, program = re.search(r'pkg-url = "(.+)"', metadata)[1], re.search(r'bin-dir = "(.+)"', metadata)[1]
    for name, value in {"repo": "https://github.com/" + REPOSITORY, "name": "plimsoll", "version": version(), "target": TARGET, "bin": "plimsoll"}.items():
        url, program = url.replace(f"{{ {name} }}", value), program.replace(f"{{ {name} }}", value)
    folder, archive = url.rsplit("/", 1)
    assert folder == f"https://github.com/{REPOSITORY}/releases/download/v{version()}", url
    with tarfile.open(dist() / archive) as packed:
        assert packed.getmember(program).mode == 0o755


def remove_release():
    if release.cache_info().currsize:
        shutil.rmtree(release().parent)


CHECKS = (
    workflows_are_valid, workflows_call_existing_scripts_and_pinned_actions, version_has_commit_and_date,
    archive_is_the_same_in_a_second_run, checksums_name_every_file, install_script_verifies_the_checksum,
    npm_package_runs_the_program, wheel_installs_the_program, debian_package_has_program_and_unit,
    formula_and_flake_have_the_checksums, released_chart_names_the_released_image, image_script_gives_each_platform_its_program,
    dockerfile_is_linted, what_is_published_can_be_verified, binstall_finds_the_archive,
)
