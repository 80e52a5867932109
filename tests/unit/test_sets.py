"""Shape sets: YAML files, read whole or refused with every problem."""

import pytest

from wanc.errors import RequestError
from wanc.spec.sets import Request, read_set

FULL = """
model: tiny
shapes: [208x128x5, 320x320x9]
topologies: [tp1, tp2-cp2-cfg2]
precision: bf16
placement: linear
target: cpu
blocks_per_program: 2
attention: allgather
vae_tiles: diffusers
"""
SMALL = "shapes: [208x128x5]\ntopologies: [tp1]\n"


@pytest.fixture
def read(tmp_path):
    """Reads YAML text as a set named set.yaml."""

    def read(text):
        path = tmp_path / "set.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_set(path)

    return read


@pytest.fixture
def problems(read, tmp_path):
    """What is wrong with a set, line by line, without the file's name."""

    def problems(text):
        with pytest.raises(RequestError) as caught:
            read(text)
        assert caught.value.exit_code == 2
        first, *lines = str(caught.value).split("\n")
        if not lines:
            assert first.startswith(f"{tmp_path}/set.yaml: ")
            return [first.removeprefix(f"{tmp_path}/set.yaml: ")]
        assert first.startswith(f"{len(lines)} problems")
        assert all(line.startswith(f"  {tmp_path}/set.yaml: ") for line in lines)
        return [line.removeprefix(f"  {tmp_path}/set.yaml: ") for line in lines]

    return problems


def test_every_key_is_read(read):
    assert read(FULL) == Request(
        model="tiny",
        shapes=("208x128x5", "320x320x9"),
        topologies=("tp1", "tp2-cp2-cfg2"),
        precision="bf16",
        placement="linear",
        target="cpu",
        blocks_per_program=2,
        attention="allgather",
        vae_tiles="diffusers",
    )


def test_what_a_set_leaves_out_is_not_given(read):
    assert read(SMALL) == Request(shapes=("208x128x5",), topologies=("tp1",))


def test_every_problem_is_named_at_once(problems):
    found = problems(
        """
        shapes: [208x128x5, 208x128x6, 208, 210x130x5]
        topologies: [tp1, tp0, cfg3]
        precision: fp8
        placement: torus
        attention: flash
        vae_tiles: [even]
        blocks_per_program: 0
        model: 7
        target: null
        tilez: 3
        """
    )
    assert [problem.split(":")[0] for problem in found] == [
        *("shapes[1]", "shapes[2]", "shapes[3]", "topologies[1]", "topologies[2]"),
        *("precision", "placement", "attention", "vae_tiles", "blocks_per_program"),
        *("model", "target", "tilez"),
    ]
    assert "nearest are 5 and 9" in found[0]
    assert "fp32, bf16" in found[5]


@pytest.mark.parametrize("key", ["shapes", "topologies"])
@pytest.mark.parametrize("value", ["[]", "{}", "208x128x5", "tp1", "null", "3"])
def test_list_must_be_a_list_with_entries(problems, key, value):
    other = {"shapes": "topologies: [tp1]", "topologies": "shapes: [208x128x5]"}[key]
    (problem,) = problems(f"{key}: {value}\n{other}")
    assert problem.startswith(f"{key}: ")
    assert problem.endswith("is not a list with entries")


def test_shapes_are_needed(problems):
    assert problems("model: tiny") == ["shapes: missing"]


@pytest.mark.parametrize("key", ["Shapes", "shape", "vae-tiles", "1", "null", "over"])
def test_unknown_key_is_refused_with_the_known_ones(problems, key):
    (problem,) = problems(SMALL + f"{key}: x")
    assert "not a key; known are model, shapes, topologies" in problem


@pytest.mark.parametrize("value", ["true", "0", "-1", "1.0", "'2'", "[2]", "null"])
def test_blocks_per_program_is_a_positive_whole_number(problems, value):
    (problem,) = problems(SMALL + f"blocks_per_program: {value}")
    assert problem.endswith("is not a positive whole number")


def test_key_that_stands_twice_is_refused_not_replaced(problems):
    assert problems("shapes: [832x480x81]\n" + SMALL) == ["shapes: stands 2 times"]


@pytest.mark.parametrize(
    "text",
    [
        "shapes: [208x128x5",
        "shapes: {",
        "a: b: c",
        "\tshapes: []",
        "shapes: !!python/object/apply:os.system [id]",
        "model: 2001-99-99",
        "blocks_per_program: !!int two",
        "model: !!timestamp noon",
        "model: !!bool maybe",
        "a: " + "[" * 1500,
        "model: \x00",
        b"model: \xff\xfe",
        SMALL + "---\n" + SMALL,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_malformed_yaml_is_a_request_error(problems, text):
    (problem,) = problems(text)
    assert problem.startswith("not YAML: ")


@pytest.mark.parametrize("text", ["", "- 208x128x5", "208x128x5", "3", "null", "# empty"])
def test_yaml_without_keys_is_refused(problems, text):
    assert problems(text) == ["needs keys and values, among them shapes"]


def test_file_that_cannot_be_read_is_named(tmp_path):
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RequestError, match=why) as caught:
            read_set(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_flags_override_a_set_key_by_key(read):
    flags = Request(model="other", shapes=("832x480x81",), precision="fp32")
    over = flags.over(read(FULL))
    assert (over.model, over.shapes, over.precision) == ("other", ("832x480x81",), "fp32")
    assert (over.topologies, over.attention) == (("tp1", "tp2-cp2-cfg2"), "allgather")


def test_zero_given_as_a_flag_is_not_taken_for_nothing_given():
    flags, base = Request(blocks_per_program=0), Request(blocks_per_program=2)
    assert flags.over(base).blocks_per_program == 0
