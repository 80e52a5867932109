"""Where credentials are looked for, which win, and that no secret is told."""

import base64
import json
import os
import stat

import pytest

from wanc.errors import RegistryError
from wanc.registry import credentials
from wanc.registry.credentials import Credentials, find_credentials, places

SECRET = "s3cr3t-of-ann"


def basic(user="ann", secret=SECRET):
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


class Home:
    """A home with a Docker config and with helpers."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / ".docker" / "config.json"
        self.environment = {"HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}

    def write(self, config, file=None):
        file = file or self.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(config if isinstance(config, str) else json.dumps(config))

    def helper(self, name, script):
        program = self.folder / f"docker-credential-{name}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def find(self, host="ghcr.io", name="me/wan"):
        return find_credentials(host, name, self.environment)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("ghcr.io", "ghcr.io"),
        ("https://ghcr.io", "ghcr.io"),
        ("https://ghcr.io/v2/", "ghcr.io"),
        ("localhost:5000", "localhost:5000"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
        ("index.docker.io", "docker.io"),
        ("https://index.docker.io/v1/", "index.docker.io"),
    ],
)
def test_a_host_s_credentials(key, host, home):
    home.write({"auths": {key: basic(), "other.io": basic("bob")}})
    found = home.find(host)
    assert (found.user, found.secret, found.is_identity_token) == ("ann", SECRET, False)
    assert found.place == str(home.file)
    assert base64.b64decode(found.basic.removeprefix("Basic ")).decode() == f"ann:{SECRET}"


def test_none_for_other_hosts_and_ports(home):
    home.write({"auths": {"ghcr.io": basic()}})
    assert home.find("ghcr.io:5000") is None
    assert home.find("x.ghcr.io") is None
    assert home.find("docker.io") is None


def test_a_password_may_have_colons(home):
    home.write({"auths": {"ghcr.io": basic(secret="a:b:c")}})
    assert home.find().secret == "a:b:c"


def test_an_identity_token(home):
    home.write({"auths": {"ghcr.io": {**basic("ann", ""), "identitytoken": SECRET}}})
    found = home.find()
    assert (found.user, found.secret, found.is_identity_token) == ("ann", SECRET, True)


def test_an_entry_without_credentials_is_none(home):
    home.write({"auths": {"ghcr.io": {}}})
    assert home.find() is None


def test_part_of_a_registry_has_its_own(home):
    home.write({"auths": {"ghcr.io": basic("all"), "ghcr.io/me": basic("me")}})
    assert home.find(name="me/wan").user == "me"
    assert home.find(name="you/wan").user == "all"
    assert home.find(name="mean/wan").user == "all"


def test_files_in_order(home, tmp_path):
    named, docker, runtime = (tmp_path / n for n in ("auth.json", "docker", "run"))
    home.environment |= {
        "REGISTRY_AUTH_FILE": str(named),
        "DOCKER_CONFIG": str(docker),
        "XDG_RUNTIME_DIR": str(runtime),
    }
    files = (named, docker / "config.json", runtime / "containers" / "auth.json")
    assert places(home.environment) == files
    assert home.find() is None
    for user, file in reversed([*zip(("first", "second", "third"), files, strict=True)]):
        home.write({"auths": {"ghcr.io": basic(user)}}, file)
        assert home.find().user == user
    del home.environment["DOCKER_CONFIG"]
    assert places(home.environment)[1] == home.file


@pytest.mark.parametrize("config", ["", "[1]", '{"auths": ', "[" * 100_000])
def test_a_damaged_config(config, home):
    home.write(config)
    with pytest.raises(RegistryError, match=r"not JSON|not a JSON object") as caught:
        home.find()
    assert str(home.file) in str(caught.value)


@pytest.mark.parametrize("auth", ["!!", base64.b64encode(SECRET.encode()).decode(), "gICA"])
def test_a_damaged_entry_is_not_told(auth, home):
    home.write({"auths": {"ghcr.io": {"auth": auth}}})
    with pytest.raises(RegistryError, match="not user:password in base64") as caught:
        home.find()
    assert auth not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_helper_of_a_host_wins_over_all_else(home):
    answer = json.dumps({"Username": "hal", "Secret": SECRET})
    home.helper("own", f"test \"$1\" = get && test $(cat) = ghcr.io && echo '{answer}'")
    home.helper("store", "exit 3")
    config = {"auths": {"ghcr.io": basic()}, "credsStore": "store"}
    home.write({**config, "credHelpers": {"ghcr.io": "own"}})
    found = home.find()
    assert (found.user, found.secret) == ("hal", SECRET)
    assert found.place == "docker-credential-own"


def test_docker_hub_has_its_old_name_to_helpers(home):
    answer = json.dumps({"Username": "<token>", "Secret": SECRET})
    home.helper("store", f"test $(cat) = https://index.docker.io/v1/ && echo '{answer}'")
    home.write({"credsStore": "store"})
    assert home.find("docker.io").is_identity_token
    home.write({"credHelpers": {"https://index.docker.io/v1/": "store"}})
    assert home.find("docker.io").secret == SECRET
    assert home.find("ghcr.io") is None


def test_a_store_without_a_host_leaves_it_to_the_config(home):
    home.helper("store", "echo 'credentials not found in native keychain'; exit 1")
    home.write({"credsStore": "store"})
    assert home.find() is None
    home.write({"credsStore": "store", "auths": {"ghcr.io": basic()}})
    assert home.find().user == "ann"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'the keychain is locked' >&2; exit 1", "failed: the keychain is locked"),
        ("echo 'the keychain is locked'; exit 1", "failed: the keychain is locked"),
        ("printf 'a\\033[31mb' >&2; exit 1", "failed: a\ufffd[31mb"),
        (f'echo \'{{"Secret": "{SECRET}"}}\'; exit 1', "failed: without a word"),
        (f"echo {SECRET}", "answered no JSON with Username and Secret"),
        (f"echo '[\"{SECRET}\"]'", "answered no JSON with Username and Secret"),
    ],
)
def test_a_helper_that_fails(script, told, home):
    home.helper("store", script)
    home.write({"credsStore": "store"})
    with pytest.raises(RegistryError) as caught:
        home.find()
    assert str(caught.value) == f"docker-credential-store {told}"
    assert SECRET not in repr(caught.value.__cause__) + repr(caught.value)


def test_a_helper_that_is_not_there(home):
    home.write({"credsStore": "nowhere"})
    with pytest.raises(RegistryError, match=r"docker-credential-nowhere, which .*json names"):
        home.find()


def test_a_helper_that_takes_too_long(home, monkeypatch):
    monkeypatch.setattr(credentials, "HELPER_SECONDS", 0.1)
    home.helper("store", f"echo {SECRET}; exec sleep 20")
    home.write({"credsStore": "store"})
    with pytest.raises(RegistryError, match="did not answer within 0 s") as caught:
        home.find()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".x", "-x", "a b", 7, ["a"]])
def test_a_helper_s_name_is_a_plain_one(name, home):
    home.write({"credHelpers": {"ghcr.io": name}})
    if not name:
        assert home.find() is None
        return
    with pytest.raises(RegistryError, match="is no name of a credential helper"):
        home.find()


def test_secrets_are_not_shown():
    found = Credentials(user="ann\x1b", secret=SECRET, place="here")
    assert SECRET not in repr(found) + str(found)
    assert str(found) == "the credentials of 'ann\ufffd' from here"
