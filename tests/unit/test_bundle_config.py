"""A variant's config: one spelling, every field checked, the format version first."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from wanc.bundle.config import FORMAT_VERSION, decode_config, encode_config
from wanc.errors import BundleError

DEEP = 100_000


@pytest.fixture(scope="module")
def config(made):
    return made("432x240x33", "tp2-cp2", vae_tiles="diffusers", precision="bf16").config


@pytest.fixture
def value(config):
    return json.loads(encode_config(config))


def refusal(data) -> str:
    with pytest.raises(BundleError) as caught:
        decode_config(data if isinstance(data, bytes) else json.dumps(data).encode(), "here")
    assert caught.value.exit_code == 5
    assert str(caught.value).startswith("here: ")
    return str(caught.value)


def test_round_trip(config):
    assert decode_config(encode_config(config), "here") == config


def test_one_spelling_whatever_the_order_of_keys(config, value):
    turned = json.dumps(dict(reversed(value.items())), indent=1).encode()
    assert encode_config(decode_config(turned, "here")) == encode_config(config)


def test_nothing_of_host_path_or_time(config):
    text = encode_config(config).decode()
    assert '"/' not in text, "no string is a path"
    for word in (str(Path.cwd()), str(Path.home()), tempfile.gettempdir(), "seconds", "created"):
        assert word not in text


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99, 10**30])
def test_newer_format_is_refused_naming_both_numbers_whatever_else_is_there(version):
    message = refusal({"format_version": version, "variant": "of another make"})
    assert f"bundle format {version}" in message
    assert f"reads format {FORMAT_VERSION}: a newer wanc reads it" in message


def test_older_format_says_to_compile_again():
    assert "bundle format 0" in refusal({"format_version": 0})
    assert refusal({"format_version": 0}).endswith("compile it again")


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [1]])
def test_version_that_is_no_number_is_no_bundle(value, version):
    assert "no format version" in refusal(value | {"format_version": version})


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"nul", b"[" * DEEP, b'{"a":' * DEEP, b"{}", b"[]", b"1", b"null"],
    ids=lambda data: repr(data[:8]),
)
def test_bytes_that_are_no_config(data):
    refusal(data)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("variant", "task"), "t3v"),
        (("variant", "shape", "width_px"), "832"),
        (("model", "transformer", "heads"), 8.5),
        (("mesh", "coordinates", 0, "tp"), None),
        (("programs", 0, "program", "weights", 0, "dtype"), "float64"),
        (("programs", 0, "program", "ranks"), "some"),
        (("programs", 0, "executable", "size_bytes"), "12"),
        (("schedule", "stages", 0, "calls", 0, "program"), 7),
        (("schedule", "feeds"), {}),
        (("tiles", "grid"), "odd"),
        (("requires",), []),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_field_of_a_wrong_kind_is_damage(value, path, wrong):
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = wrong
    assert "the config is damaged" in refusal(value)


def test_every_field_is_needed(value):
    for key in value:
        refusal({other: value[other] for other in value if other != key})


def test_program_by_name(config):
    assert config.program("dit_head").program.name == "dit_head"
    with pytest.raises(BundleError, match="has no program 'dit_tail'; it has text_encoder, dit_"):
        config.program("dit_tail")


def test_other_options_are_another_config(config):
    other = replace(config, options=replace(config.options, blocks_per_program=1))
    assert encode_config(other) != encode_config(config)
