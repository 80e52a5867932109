"""The pipelines of docs/ci do what they say: run as they stand, with a real registry."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cpu.test_parity import WHOLE
from tests.cpu.test_upkeep import TOPOLOGIES, Place, seed
from tests.unit.test_docs import COMMANDS, ROOT, options
from wanc.cli import main
from wanc.progress import Silent
from wanc.registry.manifests import resolve
from wanc.registry.reference import Reference
from wanc.registry.repository import Repository, connect
from wanc.share.compile_cache import RegistryCache

__all__ = ["seed"]  # a fixture

FOLDER = ROOT / "docs" / "ci"
GITHUB, GITLAB = (
    yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    for name in ("github-actions.yml", "gitlab-ci.yml")
)
DOCKERFILES = sorted(FOLDER.glob("Dockerfile.*"))
JOBS = ("plan", "compile", "bundle", "publish")
PASSPHRASE = "of the key"
SHIM = """#!/bin/bash
printf '%s\\0' "$PWD" "$@" > asked.part && mv asked.part "$ROOM/asked"
until [ -e "$ROOM/code" ]; do sleep 0.01; done
code=$(cat "$ROOM/code"); rm "$ROOM/code"
cat "$ROOM/stderr" >&2; cat "$ROOM/stdout"; exit "$code"
"""
"""wanc, for a script: what it is asked is done in the test's process, where all is imported."""


def github_scripts(job: str) -> list[str]:
    return [step["run"] for step in GITHUB["jobs"][job]["steps"] if "run" in step]


def gitlab_scripts(job: str) -> list[str]:
    """Of a job; compile's stands in one that the plan hands on."""
    return list(GITLAB[".compile" if job == "compile" else job]["script"])


def with_wanc(scripts: list[str]) -> list[str]:
    return [script.strip() for script in scripts if re.search(r"\bwanc ", script)]


def wanc_lines() -> Iterator[list[str]]:
    """The words of every command, of both pipelines."""
    for scripts in (github_scripts, gitlab_scripts):
        for script in (script for job in JOBS for script in scripts(job)):
            for line in re.findall(r"^(?:\w+=\$\()?wanc ([^)>|\n]*)", script, re.MULTILINE):
                yield shlex.split(line)


# --- what can be read -----------------------------------------------------------------------------


def test_both_pipelines_have_the_same_steps_in_the_same_order():
    assert tuple(GITHUB["jobs"]) == JOBS == tuple(GITLAB["stages"])
    for job in JOBS:
        assert with_wanc(github_scripts(job)) == with_wanc(gitlab_scripts(job))
    assert github_scripts("plan")[:2] == gitlab_scripts("plan")[:2]
    names = [words[0] for words in wanc_lines()]
    ours = names[: len(names) // 2]
    assert ours == [
        *("plan", "compile", "compile", "verify", "tiny", "compile", "run"),
        *("diff", "push", "pull", "sign", "push", "verify", "push"),
    ]


def test_every_command_and_option_of_the_pipelines_exists():
    for name, *words in wanc_lines():
        given = {word for word in words if word.startswith("-")}
        assert given <= set(options(COMMANDS[name])), name


def test_commands_of_the_page_have_options_that_exist():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    known = {option for command in COMMANDS.values() for option in options(command)}
    foreign = {"--build-arg"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known | foreign
    assert set(re.findall(r"\bwanc ([a-z]+) ", text)) >= {"plan", "run", "pull", "key"}
    assert set(re.findall(r"[`\n]wanc ([a-z]+)", text)) <= set(COMMANDS)


def test_scripts_take_values_from_the_environment_alone():
    scripts = [script for job in JOBS for script in github_scripts(job)]
    assert not [script for script in scripts if "${{" in script]


def test_only_the_last_job_has_the_key():
    for job in JOBS[:-1]:
        assert "KEY" not in json.dumps([GITHUB["jobs"][job], gitlab_scripts(job)])


def test_actions_are_pinned_by_major_version():
    steps = [step for job in GITHUB["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert len(used) == len(JOBS)
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", name) for name in used)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_copy_what_is_there_and_install_pinned_versions(path):
    lines = re.findall(r"^([A-Z]+) (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    bases = [rest for word, rest in lines if word == "FROM"]
    assert all(re.fullmatch(r"python:3\.11-slim-\w+", base) for base in bases)
    copied = [source for word, rest in lines if word == "COPY" for source in rest.split()[:-1]]
    assert {"constraints.txt", "pyproject.toml", "kernels", "wanc"} <= set(copied)
    assert not [source for source in copied if not (ROOT / source).exists()]
    installs = [rest for word, rest in lines if word == "RUN" and "pip install" in rest]
    assert len(installs) >= 2
    assert all(" -c constraints.txt " in line for line in installs)
    assert ("ENTRYPOINT", '["wanc"]') in lines or path.suffix == ".compile"
    assert any(word == "USER" for word, _ in lines) is (path.suffix == ".run")


def test_dockerfiles_copy_all_that_the_package_is_built_of():
    stated = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    files = re.findall(r'^(?:readme|license-files) = \[?"([^"]+)', stated, re.MULTILINE)
    for path in DOCKERFILES:
        assert set(files) <= set(path.read_text(encoding="utf-8").split())


# --- what can be run ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs scripts as a CI system does, each job in a folder and a cache of its own."""

    folder: Path
    values: dict[str, str]
    patch: pytest.MonkeyPatch
    capsys: Any

    def run(self, job: str, scripts: list[str], **values: str) -> list[str]:
        """What each script printed; each is a bash that ends at its first failure."""
        work = self.folder / job
        work.mkdir(exist_ok=True)
        shutil.copy(self.folder / "set.yaml", work)
        given = self.values | {"XDG_CACHE_HOME": str(work / "cache")} | values
        with self.patch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            patch.chdir(work)
            return [self._script(script) for script in scripts]

    def _script(self, script: str) -> str:
        shell = subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while shell.poll() is None:
            time.sleep(0.005)
            with suppress(FileNotFoundError):
                self._answer((self.folder / "asked").read_text())
        printed = shell.communicate()[0]
        assert shell.returncode == 0, f"{script}\n{printed}"
        return printed

    def _answer(self, asked: str) -> None:
        (self.folder / "asked").unlink()
        here, *words = asked.split("\0")[:-1]
        assert Path(here) == Path.cwd()
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        printed = self.capsys.readouterr()
        (self.folder / "stdout").write_text(printed.out)
        (self.folder / "stderr").write_text(printed.err)
        (self.folder / "code.part").write_text(str(ended.value.code or 0))
        (self.folder / "code.part").rename(self.folder / "code")


@pytest.fixture
def repository(docker_registry: str) -> Iterator[Repository]:
    with closing(connect(Reference(host=docker_registry, name="ci/fleet"))) as opened:
        yield opened


@pytest.fixture
def cache(docker_registry: str, seed: Path, wanc: Any) -> str:
    """A compile cache in the registry that has every program of the set: jobs compile nothing."""
    given = Place(wanc=wanc, folder=seed).cache.path
    name = "ci/wanc-cache"
    with closing(connect(Reference(host=docker_registry, name=name))) as opened:
        shared = RegistryCache(opened, Silent())
        for kind in ("stablehlo", "executables"):
            for record in (given / kind).iterdir():
                blob = given / "blobs" / json.loads(record.read_bytes())["digest"].split(":")[-1]
                shared.offer(kind, record.stem, record.read_bytes(), blob.read_bytes())
    return f"{docker_registry}/{name}"


@pytest.fixture
def runner(
    docker_registry: str,
    cache: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> Runner:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # main would keep SIGTERM for itself
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "wanc").write_text(SHIM)
    (tmp_path / "bin" / "wanc").chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    listed = "".join(f"\n- {topology}" for topology in TOPOLOGIES)
    (tmp_path / "set.yaml").write_text(
        f"model: tiny\ntarget: cpu\nshapes: [{WHOLE}]\ntopologies:{listed}\n"
    )
    values = {name: str(value) for name, value in GITHUB["env"].items()} | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "ROOM": str(tmp_path),
        "SET": "set.yaml",
        "REPOSITORY": f"{docker_registry}/ci/fleet",
        "CACHE": cache,
        "SOURCE_URI": "git+https://git.example/fleet",
        "REVISION": "7fd1a60b01f91b314f59955a4e4d4e80d8edf11d",
        "RUN": "1",
        "DOCKER_CONFIG": str(tmp_path / "login"),
        "REGISTRY_LOGIN": '{"auths": {}}',
    }
    return Runner(folder=tmp_path, values=values, patch=monkeypatch, capsys=capsys)


def new_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the last job is given of a key."""
    monkeypatch.setenv("KEY_PASSPHRASE", PASSPHRASE)
    with pytest.raises(SystemExit):
        main(["key", "new", str(folder / "ci.key"), "--passphrase-env", "KEY_PASSPHRASE"])
    monkeypatch.delenv("KEY_PASSPHRASE")
    return {
        "SIGNING_KEY": str(folder / "given.key"),
        "KEY_TEXT": (folder / "ci.key").read_text().rstrip("\n"),
        "PUBLIC_KEY": str(folder / "ci.key.pub"),
        "KEY_PASSPHRASE": PASSPHRASE,
    }


def compiled_nothing(printed: str) -> bool:
    """Whether every program of a compile came from the cache."""
    rows = re.findall(r"^(?:text_encoder|dit_\w+|vae_\w+) .*$", printed, re.MULTILINE)
    return bool(rows) and all(len(re.findall(r"\bcache\b", row)) == 2 for row in rows)


def matrix_of(runner: Runner) -> list[dict[str, str]]:
    """What the plan job hands on, the same to both systems."""
    github = {"GITHUB_OUTPUT": str(runner.folder / "planned")}
    runner.run("plan", github_scripts("plan"), **github)
    name, _, text = (runner.folder / "planned").read_text().partition("=")
    assert name == "MATRIX"
    runner.run("plan", gitlab_scripts("plan"), CI_CONFIG_PATH=str(FOLDER / "gitlab-ci.yml"))
    child = yaml.safe_load((runner.folder / "plan" / "compile.yml").read_text())
    job = child["compile"]
    assert job["script"] == GITLAB[".compile"]["script"]
    assert (child["variables"], job["image"]) == (GITLAB["variables"], "$WANC_IMAGE")
    assert job["before_script"] == GITLAB[".job"]["before_script"]
    matrix: list[dict[str, str]] = json.loads(text)
    assert job["parallel"] == {"matrix": matrix}
    return matrix


def test_the_pipeline_publishes_signs_and_tags_last(
    runner: Runner, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = matrix_of(runner)
    assert matrix == [{"SHAPE": WHOLE, "TOPOLOGY": topology} for topology in TOPOLOGIES]
    for number, variant in enumerate(matrix):
        *_, printed = runner.run(f"compile{number}", github_scripts("compile"), **variant)
        assert compiled_nothing(printed)

    golden = {"GOLDEN_SHAPE": WHOLE, "GOLDEN_TOPOLOGY": TOPOLOGIES[-1]}
    output, summary = runner.folder / "output", runner.folder / "summary"
    handed = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
    printed = runner.run("bundle", github_scripts("bundle"), **golden, **handed)
    assert compiled_nothing(printed[1])
    assert compiled_nothing(printed[3])
    assert (runner.folder / "bundle" / "golden.mp4").stat().st_size > 1000
    assert "nothing to compare with" in summary.read_text()
    name, _, pinned = output.read_text().strip().partition("=")
    assert name == "PINNED"
    digest = pinned.partition("@")[2]
    assert pinned == f"{runner.values['REPOSITORY']}@{digest}"

    tag = runner.values["TAG"]
    keys = new_key(runner.folder, monkeypatch)
    *before, last = github_scripts("publish")
    printed = runner.run("publish", before, PINNED=pinned, **keys)
    assert "signed by key" in printed[-1]
    assert resolve(repository, tag) is None
    runner.run("publish", [last], PINNED=pinned)
    found = resolve(repository, tag)
    assert found
    assert found.digest == digest
    check = f'wanc verify "$REPOSITORY:{tag}" --key "$PUBLIC_KEY"'
    (shown,) = runner.run("fleet", [check], PUBLIC_KEY=keys["PUBLIC_KEY"])
    assert digest in shown
    assert "signed by key" in shown
    (shown,) = runner.run("bundle", with_wanc(github_scripts("bundle"))[3:4])
    assert "no difference" in shown
