"""Cases from the field about shapes, frames and topologies: the fault, and the right value.

Each test names the public report that it retells. All of them end before anything is traced.
"""

import json
from dataclasses import replace

import pytest

from wanc.cli import main
from wanc.errors import RefusedError
from wanc.plan.geometry import geometry
from wanc.plan.mesh import Mesh
from wanc.spec.presets import TINY, WAN22_I2V_A14B, WAN22_T2V_A14B
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology

A14B = WAN22_T2V_A14B.name


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """Runs a command in an empty directory; gives its exit code, its product and its log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def command(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return command


@pytest.fixture
def planned(command):
    """The one plan of a request, as JSON, and what was said beside it."""

    def planned(line: str):
        code, out, err = command(f"plan --json {line}")
        assert code == 0, err
        (variant,) = json.loads(out)["variants"]
        return variant, err

    return planned


@pytest.fixture
def refused(command, tmp_path):
    """The message of a refusal, by plan and by compile alike, with nothing written."""

    def refused(line: str, code: int) -> str:
        messages = set()
        for verb in ("plan", "compile -o bundle", "compile"):
            seen, out, err = command(f"{verb} --target cpu {line}")
            assert seen == code
            assert not out
            messages.add(err.splitlines()[-1])
        assert not list(tmp_path.iterdir())
        (message,) = messages
        return message

    return refused


def test_frames_other_than_4k_plus_1_name_the_nearest(refused):
    """huggingface/diffusers #11163; others round 80 to 81 in silence."""
    message = refused("--model tiny --shape 208x128x6", 2)
    assert "frames 6 is not 4k+1; nearest are 5 and 9" in message


@pytest.fixture
def refused_alike(refused):
    """The one message of a refusal, for text and for image to video, tiny and published."""

    def refused_alike(line: str, code: int) -> str:
        told = {}
        for text, image in (("tiny", "tiny-i2v"), (A14B, WAN22_I2V_A14B.name)):
            for model in (text, image):
                message = refused(f"--model {model} {line}", code)
                told[model] = message.replace(model, "MODEL")
            assert told[text] == told[image]
        return told[A14B]

    return refused_alike


@pytest.mark.parametrize(
    ("shape", "nearest"),
    [("1920x1080x81", "height 1080"), ("210x128x5", "width 210"), ("208x127x5", "height 127")],
)
def test_odd_sizes_are_refused_not_rounded(refused_alike, shape, nearest):
    """vllm-omni (source): 1920x1080 becomes 1072 in t2v and an error in i2v."""
    message = refused_alike(f"--shape {shape}", 2)
    assert f"{nearest} is not a positive multiple of 16; nearest are" in message


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--shape 208x128x6", 2, "nearest are 5 and 9"),
        ("--shape 208x128x5 --topology cfg3", 2, "cfg"),
        ("--shape 208x128x5 --topology tp3", 3, "3 does not divide 40"),
        ("--shape 208x128x5 --topology tp2-cp2 --max-ranks 3", 3, "4 ranks"),
        ("--shape 208x128x5 --blocks-per-program 3", 3, "try 1, 2"),
    ],
)
def test_text_and_image_to_video_have_the_same_rules(refused_alike, line, code, said):
    """vllm-omni (source): what one task rounds is an error of the other."""
    assert said in refused_alike(line, code)


def test_nearest_of_1080_is_named(refused):
    assert "1072 and 1088" in refused("--model tiny --shape 1920x1080x81", 2)


def test_refusal_is_json_where_that_is_asked_for(command):
    code, out, _ = command("plan --json --model tiny --shape 208x128x6")
    error = json.loads(out)["error"]
    assert error["exit_code"] == code == 2
    assert "nearest are 5 and 9" in error["message"]


def test_latent_frames_need_not_divide_by_cp(planned):
    """hao-ai-lab/FastVideo #676: three latent frames on cp2. Tokens are split, not frames."""
    variant, _ = planned("--model tiny --shape 208x128x9 --topology cp2")
    assert variant["geometry"]["latent_frames"] == 3
    assert variant["tokens"]["chunk_tokens"] == 156
    assert not variant["tokens"]["masked"]


def test_tokens_that_cp_does_not_divide_are_planned_with_their_padding(planned, command):
    """vllm-omni-neuron (source) refuses 432x240x33 at cp8: L is 3,645."""
    line = "--model tiny --shape 432x240x33 --topology cp8"
    tokens = planned(line)[0]["tokens"]
    assert (tokens["tokens"], tokens["chunk_tokens"], tokens["masked"]) == (3_645, 456, True)
    _, out, _ = command(f"plan {line}")
    assert "3 pads in the last chunks" in out


@pytest.mark.parametrize("shape", ["832x480x81", "1280x720x81", "208x128x5"])
def test_common_shapes_at_tp4_cp8_need_no_mask(planned, shape):
    """vllm-project/vllm-omni (source): pad tokens are attended to unless a flag is set."""
    tokens = planned(f"--model {A14B} --shape {shape} --topology tp4-cp8")[0]["tokens"]
    assert not tokens["masked"]
    assert tokens["padded_chunk_tokens"] > tokens["chunk_tokens"]


def test_degree_that_does_not_divide_the_heads_is_refused_by_plan(refused):
    """Wan-Video/Wan2.2 #176, Wan2.1 #109: found late elsewhere."""
    message = refused(f"--model {A14B} --shape 832x480x81 --topology tp3", 3)
    assert "3 does not divide 40 attention heads" in message
    assert "try tp1, tp2, tp4, tp8" in message


def test_degree_that_divides_the_heads_and_not_the_ffn_is_refused(refused):
    message = refused(f"--model {A14B} --shape 832x480x81 --topology tp5", 3)
    assert "5 does not divide 13824 ffn width" in message


def test_sequence_groups_are_not_consecutive_ranks_under_tp(planned):
    """sgl-project/sglang PR #16532."""
    assert Mesh.ordered(Topology(tp=2, cp=2, cfg=2)).groups("cp") == (
        *((0, 2), (1, 3), (4, 6), (5, 7)),
    )
    variant, _ = planned("--model tiny --shape 208x128x5 --topology tp2-cp2-cfg2")
    programs = {program["name"]: program for program in variant["programs"]}
    assert programs["dit_blocks"]["groups"]["cp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert programs["dit_blocks"]["groups"]["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert programs["dit_head"]["groups"]["cfg"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_5b_size_that_is_no_multiple_of_32_names_the_nearest():
    """huggingface/diffusers #13034, deepbeepmeep/Wan2GP #709: 1280x704, not 1280x720."""
    coarse = replace(TINY, name="5b", vae=replace(TINY.vae, spatial_stride=16))
    with pytest.raises(RefusedError, match="height 720 is not a multiple of 32") as caught:
        geometry(Shape.parse("1280x720x121"), coarse)
    assert "nearest are 704 and 736" in str(caught.value)
    assert caught.value.exit_code == 3
    geometry(Shape.parse("1280x704x121"), coarse)


def test_more_frames_than_trained_on_are_warned_of(planned):
    """Comfy-Org/ComfyUI #9106: A14B at 121 frames gives burnt first frames."""
    variant, log = planned(f"--model {A14B} --shape 832x480x121 --topology tp4-cp8")
    assert "warning" in log
    assert "trained on 81 frames" in log
    assert len(variant["warnings"]) == 1
    _, log = planned(f"--model {A14B} --shape 832x480x81 --topology tp4-cp8")
    assert "warning" not in log


def test_more_ranks_than_there_are_is_refused_before_any_work(refused):
    """aws-neuron/aws-neuron-sdk #1030: an opaque runtime error elsewhere."""
    line = f"--model {A14B} --shape 832x480x81 --topology tp4-cp8-cfg2 --max-ranks 32"
    message = refused(line, 3)
    assert "64 ranks are more than the limit of 32; try tp4-cp8" in message


def test_every_variant_of_a_set_is_checked_with_file_and_key(refused, tmp_path_factory):
    path = tmp_path_factory.mktemp("sets") / "set.yaml"
    path.write_text("model: tiny\nshapes: [208x128x6, 208x128x5]\ntopologies: [cfg3]\n")
    message = refused(str(path), 2)
    assert message.startswith(f"  {path}: topologies[0]: ")


def test_zero_blocks_are_refused_though_a_set_gives_a_number(refused, tmp_path_factory):
    path = tmp_path_factory.mktemp("sets") / "set.yaml"
    path.write_text("model: tiny\nshapes: [208x128x5]\ntopologies: [tp1]\nblocks_per_program: 2\n")
    message = refused(f"{path} --blocks-per-program 0", 3)
    assert "blocks per program 0 does not divide the 2 layers of tiny; try 1, 2" in message
