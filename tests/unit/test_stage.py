"""Stage files of vLLM-Omni: what becomes of every field, and what is refused."""

import random
from itertools import pairwise

import pytest
import typer

from wanc.cli.app import app_of
from wanc.errors import RefusedError, RequestError
from wanc.plan.plan import make_plan
from wanc.spec.resolve import resolve
from wanc.spec.sets import Request
from wanc.spec.stage import MOST_BYTES, read_stage, shown
from wanc.spec.stage_fields import KNOWN, PIPELINES, RUN_OPTIONS, cores_of

T2V = """
stage_args:
  - stage_id: 0
    stage_type: diffusion
    final_output: true
    final_output_type: video
    runtime:
      process: true
      devices: "0-63"
      max_batch_size: 2
    engine_args:
      model_class_name: Wan22Pipeline
      model_stage: diffusion
      dtype: bfloat16
      boundary_ratio: 0.875
      flow_shift: 5.0
      vae_use_tiling: true
      model_config:
        tp_sequence_parallel: true
      parallel_config:
        tensor_parallel_size: 4
        ring_degree: 8
        cfg_parallel_size: 2
        vae_patch_parallel_size: 16
"""
"""As the Neuron plugin has it for 64 cores."""

STAGES = """
async_chunk: false
trust_remote_code: true
dtype: float32

stages:
  - stage_id: 0
    stage_type: diffusion
    max_num_seqs: 1
    enforce_eager: false
    devices: "0,1,2,3"
    model: Wan-AI/Wan2.2-T2V-A14B-Diffusers
    parallel_config:
      pipeline_parallel_size: 1
      data_parallel_size: 1
      tensor_parallel_size: 2
      enable_expert_parallel: false
      sequence_parallel_size: 2
      ulysses_degree: 1
      ring_degree: 2
      cfg_parallel_size: 1
      vae_patch_parallel_size: 1
      use_hsdp: false
      hsdp_shard_size: -1
      hsdp_replicate_size: 1
    default_sampling_params:
      num_inference_steps: 30
      height: 480
      width: 832
      num_frames: 81
      guidance_scale: 4
      guidance_scale_2: 3.0
      seed: 42
"""
"""The newer form, with all that a diffusion stage may say of parallelism."""

TWO_STAGES = """
stage_args:
  - stage_id: 0
    stage_type: llm
    runtime: {devices: "0", max_batch_size: 1}
    engine_args: {model_stage: thinker, tensor_parallel_size: 1}
  - stage_id: 1
    runtime: {devices: "1-4"}
    engine_args:
      model_class_name: Wan22I2VPipeline
      parallel_config: {tensor_parallel_size: 4}
    engine_input_source: [0]
runtime:
  enabled: true
  edges:
    - {from: 0, to: 1, window_size: -1}
"""


@pytest.fixture
def read(tmp_path):
    """Reads YAML text as a stage file."""

    def read(text):
        path = tmp_path / "stage.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_stage(path)

    return read


@pytest.fixture
def problems(read, tmp_path):
    """What is wrong with a file, line by line, without the file's name, and the kind of error."""

    def problems(text):
        with pytest.raises((RequestError, RefusedError)) as caught:
            read(text)
        first, *lines = str(caught.value).split("\n")
        if lines:
            assert first == f"{len(lines)} problems in the stage file:"
        lines = [line.removeprefix("  ") for line in lines] or [first]
        assert all(line.startswith(f"{tmp_path}/stage.yaml: ") for line in lines)
        found = [line.removeprefix(f"{tmp_path}/stage.yaml: ") for line in lines]
        return found, type(caught.value)

    return problems


def changed(*lines):
    """The first file with lines in place of those of the same keys, or added."""
    keys = {line.split(":")[0] for line in lines}
    kept = [
        old
        for old in T2V.splitlines()
        if old.endswith(":") or old.strip().split(":")[0] not in keys
    ]
    return "\n".join([*kept, *(f"        {line}" for line in lines)])


def meanings(stage):
    return {became.field: became.meaning for became in stage.became}


def options(stage):
    return dict(zip(stage.run_options[::2], stage.run_options[1::2], strict=True))


def test_plugin_s_file_becomes_a_request(read):
    stage = read(T2V)
    assert stage.request == Request(
        model="wan2.2-t2v-a14b", topologies=("tp4-cp8-cfg2",), precision="bf16"
    )
    assert options(stage) == {"--vae-ranks": "16", "--flow-shift": "5.0"}


def test_every_field_is_told_in_the_order_of_the_file(read):
    stage = read(T2V)
    assert [became.field for became in stage.became] == [
        line.strip(" -").split(":")[0]
        for line in T2V.splitlines()[2:]
        if not line.endswith(":")  # those hold the others
    ]
    told = meanings(stage)
    unused = {field for field, text in told.items() if text == "not used by wanc"}
    assert unused == {
        *("stage_id", "final_output", "final_output_type", "process", "max_batch_size"),
        "model_stage",
    }
    assert {field: text for field, text in told.items() if field not in unused} == {
        "stage_type": "the stage that is read",
        "devices": "64 cores; wanc counts them from 0",
        "model_class_name": "task t2v",
        "dtype": "precision bf16",
        "boundary_ratio": "two experts; they meet where the checkpoint says",
        "flow_shift": "wanc run --flow-shift 5.0",
        "vae_use_tiling": "wanc always decodes in tiles",
        "tp_sequence_parallel": "wanc always splits tokens over tp",
        "tensor_parallel_size": "tp4",
        "ring_degree": "cp8",
        "cfg_parallel_size": "cfg2",
        "vae_patch_parallel_size": "wanc run --vae-ranks 16",
    }
    assert {became.field: became.value for became in stage.became}["flow_shift"] == "5.0"


def test_request_of_a_file_plans(read):
    request = Request(shapes=("832x480x81",)).over(read(T2V).request)
    spec = resolve(request, "trn2")
    plan = make_plan(spec.model, spec.variants[0], spec.options, max_ranks=None)
    assert str(plan.variant) == "t2v 832x480x81 tp4-cp8-cfg2 bf16 trn2"


def test_newer_form_with_a_shape_and_sampling(read):
    stage = read(STAGES)
    assert stage.request == Request(
        model="wan2.2-t2v-a14b",
        shapes=("832x480x81",),
        topologies=("tp2-cp2",),
        precision="fp32",
    )
    assert options(stage) == {
        "--guidance": "high=4,low=3.0",
        "--seed": "42",
        "--steps": "30",
        "--vae-ranks": "1",
    }
    told = meanings(stage)
    assert told["width"] == "width of the shape"
    assert told["guidance_scale_2"] == "low=3.0 in wanc run --guidance"
    assert stage.became[-1].field == "dtype"  # it stands beside the stages, and holds for all


def test_one_guidance_means_both_experts(read):
    assert options(read(STAGES.replace("guidance_scale_2", "x")))["--guidance"] == "4"


def test_wanc_run_has_the_options():
    run = typer.main.get_command(app_of(["run", "plan"])).commands["run"]
    assert set(RUN_OPTIONS.values()) <= {name for param in run.params for name in param.opts}


def test_stage_s_own_value_goes_before_the_one_beside_the_stages(read):
    text = STAGES.replace("    stage_type", "    dtype: bfloat16\n    stage_type")
    assert read(text).request.precision == "bf16"


def test_the_one_diffusion_stage_is_taken(read):
    stage = read(TWO_STAGES)
    assert stage.request == Request(model="wan2.2-i2v-a14b", topologies=("tp4",))
    told = meanings(stage)
    assert told["devices"] == "4 cores; wanc counts them from 0"
    assert told["engine_input_source"] == told["edges"] == "not used by wanc"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((text, 0) for text in ("", "3", "null", "[]", "stage_args", "shapes: [832x480x81]")),
        *((f"stage_args: {value}", 0) for value in ("[]", "{}", "3", "null", "[3]", "[null]")),
        ("stage_args: [{stage_type: llm}, {stage_id: 1}]", 0),
        ("stages: [{stage_type: [diffusion]}]", 0),
        ("stage_args: [{stage_type: diffusion}, {stage_type: diffusion}]", 2),
        ("stage_args: [{stage_type: diffusion}]\nstages: [{stage_type: diffusion}]", 2),
    ],
)
def test_one_diffusion_stage_is_needed(problems, text, number):
    (problem,), kind = problems(text)
    assert kind is RequestError
    assert problem == f"needs one diffusion stage in stage_args or stages, and has {number}"


def test_bare_stage_is_one_rank(read):
    stage = read("stages: [{stage_type: diffusion, runtime: null}]")
    assert stage.request == Request(topologies=("tp1",))
    assert meanings(stage)["runtime"] == "not given"


@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan2.2-t2v-a14b"),
        ("/models/Wan2.2-TI2V-5B-Diffusers", "wan2.2-ti2v-5b"),
        ("./my-checkpoint", "./my-checkpoint"),
    ],
)
def test_model_that_is_named_goes_before_what_the_pipeline_means(read, named, model):
    assert read(changed(f"model: {named}")).request.model == model


def test_pipeline_of_several_models_leaves_the_model_open(read):
    assert read(T2V.replace("boundary_ratio: 0.875", "enforce_eager: true")).request.model is None


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("boundary_ratio: 0.9", "two experts; they meet where the checkpoint says"),
        ("flow_shift: 12", "wanc run --flow-shift 12"),
        ("dtype: auto", "precision bf16"),
        ("dtype: FP32", "precision fp32"),
        ("dtype: null", "not given"),
        ("dtype: ''", "not given"),
        ("quantization: bf16", "no quantization"),
        ("use_hsdp: False", "tp splits weights"),
        ("allgather_degree: 1", "ring_degree splits tokens"),
        ("data_parallel_size: ~", "not given"),
        ("model: a-folder", "the model, or its folder"),
        ("cache_backend: cache_dit", "not used by wanc"),
        ("enable_ring_attention: false", "attention allgather"),
    ],
)
def test_value_is_told_as_what_it_becomes(read, line, meaning):
    assert meanings(read(changed(line)))[line.split(":")[0]] == meaning


def test_attention_is_what_the_file_says(read):
    assert read(T2V).request.attention is None
    for value, attention in (("true", "ring"), ("False", "allgather")):
        assert read(changed(f"enable_ring_attention: {value}")).request.attention == attention


@pytest.mark.parametrize(
    ("line", "works"),
    [
        ("ulysses_degree: 4", "1, with ring_degree that much larger,"),
        ("allgather_degree: 8", "1, with ring_degree that much larger,"),
        ("quantization: fp8", "precision bf16"),
        ("quantization_config: {method: fp8}", "precision bf16"),
        ("model_config: {quantization: fp8_row_mx}", "precision bf16"),
        ("diffusion_kv_cache_dtype: fp8", "precision bf16"),
        ("dtype: float16", "bfloat16 or float32"),
        ("data_parallel_size: 2", "1, with a wanc run for each replica,"),
        ("pipeline_parallel_size: 2", "1, with more tp or cp,"),
        ("use_hsdp: true", "false, with tensor_parallel_size,"),
        ("lora_path: a.safetensors", "a checkpoint that it is merged into"),
        *(
            (f"model_class_name: {name}", " or ".join(PIPELINES))
            for name in ("QwenImagePipeline", "WanDMDPipeline", "Wan22VACEPipeline", "[]")
        ),
    ],
)
def test_what_wanc_does_not_have_is_refused_with_what_would_work(problems, line, works):
    (problem,), kind = problems(changed(line))
    assert kind is RefusedError
    assert problem.startswith("stage_args[0].engine_args.")
    assert problem.endswith(f" is not supported: {works} would work")


def test_other_files_are_not_followed(problems):
    (problem,), kind = problems(f"base_config: other.yaml{T2V}")
    assert kind is RefusedError
    assert problem.startswith("base_config: other.yaml is not supported: ")


@pytest.mark.parametrize(
    ("devices", "cores"),
    [
        *(("0-63", 64), ("0,1,2,3", 4), (" 0 - 3, 8-11 ", 8), ("7", 1), ("0,0,0-1", 2)),
        (["0", "1", "2-3"], 4),
    ],
)
def test_devices_are_ranges_or_lists(devices, cores):
    assert len(cores_of(devices)) == cores


@pytest.mark.parametrize(
    "devices",
    [
        *("", "a", "0-", "-1", "3-1", "0-99999", "1.5", "cpu", "0x10", "1" * 99),
        *([["0"]], {"a": "1"}, [None]),
    ],
)
def test_devices_that_are_not(devices):
    with pytest.raises(RequestError):
        cores_of(devices)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("devices: 0-31", "devices: names 32 cores, and tp4-cp8-cfg2 has 64 ranks"),
        ("vae_patch_parallel_size: 65", "_size: is 65, and tp4-cp8-cfg2 has 64 ranks"),
        ("sequence_parallel_size: 4", "sequence_parallel_size: is 4, and ring_degree is 8"),
        ("cfg_parallel_size: 3", "cfg_parallel_size: 3 is not a whole number from 1 to 2"),
    ],
)
def test_fields_must_go_together(problems, line, problem):
    (found,), kind = problems(changed(line))
    assert kind is RequestError
    assert found.endswith(problem)


@pytest.mark.parametrize(
    "key", ["tensor_parallel_size", "ring_degree", "vae_patch_parallel_size", "width"]
)
@pytest.mark.parametrize(
    "value", ["00", "-1", "1.0", "four", "true", "[4]", "1000000", "0x" + "f" * 99, "9" * 5000]
)
def test_degree_is_a_positive_whole_number(problems, key, value):
    found, kind = problems(changed(f"{key}: {value}"))
    assert kind is RequestError
    assert [problem for problem in found if f"{key}: " in problem]


@pytest.mark.parametrize("value", ["0", "-1", "1e999", ".nan", "nan", "inf", "fast", "{}"])
def test_shift_is_a_positive_number(problems, value):
    (problem,), kind = problems(changed(f"flow_shift: {value}"))
    assert kind is RequestError
    assert "flow_shift: " in problem


def test_all_problems_are_named_at_once_and_what_follows_from_them_is_not(problems):
    found, kind = problems(
        """
        stage_args:
          - stage_type: diffusion
            runtime: {devices: "0"}
            engine_args:
              dtype: int8
              boundary_ratio: 2
              flow_shift: -1
              quantization: fp8
              parallel_config: {tensor_parallel_size: four, ring_degree: 2, ulysses_degree: 2}
            default_sampling_params: {width: 100.5, height: 480, num_frames: 81}
        """
    )
    assert kind is RequestError
    assert [problem.split(": ")[0].rpartition(".")[2] for problem in found] == [
        *("dtype", "boundary_ratio", "flow_shift", "quantization", "tensor_parallel_size"),
        *("ulysses_degree", "width"),
    ]


def test_same_field_twice_is_refused_not_replaced(problems, read):
    (problem,), kind = problems(T2V.replace("model_stage: diffusion", "ring_degree: 4"))
    assert kind is RequestError
    assert problem.endswith(
        "parallel_config.ring_degree: 8 is not 4, as stage_args[0].engine_args.ring_degree says"
    )
    assert read(T2V.replace("model_stage: diffusion", "ring_degree: 8"))
    (problem,), _ = problems(changed("zzz: 1", "zzz: 2"))
    assert problem == "cannot be read: line 26: zzz stands twice"


@pytest.mark.parametrize(
    "key", ["runtime", "engine_args", "parallel_config", "model_config", "default_sampling_params"]
)
def test_field_that_should_hold_fields(problems, key):
    (problem,), kind = problems(f"stages: [{{stage_type: diffusion, {key}: [1]}}]")
    assert kind is RequestError
    assert problem == f"stages[0].{key}: 1 entry is not a mapping of fields"


BOMB = "a: &a [1]\n" + "\n".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    "text",
    [
        "stage_args: [",
        "\tstage_args: []",
        "stage_args: !!python/object/apply:os.system [id]",
        'a: "\\UFFFFFFFF"',
        'a: "\\U00110000"',
        "%YAML " + "9" * 5000 + ".1\n---\na",
        "a: {? [a] : b, ? [c] : d}",
        "a: " + "[" * 1500,
        "[" * (MOST_BYTES - 1),
        "a: \x00",
        b"a: \xff\xfe",
        "a: 1\n---\na: 2\n",
        BOMB,
        "&a [*a]",
        "#" * (MOST_BYTES + 1),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_malformed_or_hostile_yaml_is_a_request_error(problems, text):
    (problem,), kind = problems(text)
    assert kind is RequestError
    assert len(problem) < 500


@pytest.mark.parametrize("text", [BOMB, f"{'[' * 17}{']' * 17}"])
def test_aliases_and_depth_are_named(problems, text):
    assert problems(text)[0] == ["cannot be read: has aliases, *name, or is more than 16 deep"]


def test_file_that_cannot_be_read_is_named(tmp_path):
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RequestError, match=why) as caught:
            read_stage(path)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "value", ["\x1b[2Jred", "a\nb", "x" * 1000, "\ud800", [["deep"]], {"1": "2"}, None]
)
def test_values_are_shown_on_one_short_harmless_line(value):
    text = shown(value)
    assert text.isprintable()
    assert 0 < len(text) <= 40


ODD = [
    *("null", "true", "-1", "0", "1", "4", "1e999", ".nan", "-.inf", "'4'", "0-3", "[]", "{}"),
    *("[0, 1]", "{a: b}", "fp8", "bfloat16", "2001-01-01", "!!binary aGk=", "0x" + "f" * 9000),
    *("!!set {a}", "~", '"\\e[31m"', "12:30:45", "{<<: {a: 1}}", "[[[[]]]]", "diffusion"),
]


@pytest.mark.parametrize("seed", range(8))
def test_no_input_crashes(read, seed):
    """Files with values and keys put anywhere, and with characters lost, doubled or swapped."""
    draw = random.Random(seed)
    base = draw.choice([T2V, STAGES, TWO_STAGES])
    for _ in range(40):
        lines = base.splitlines()
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(lines))
            key, colon, _ = lines[at].partition(":")
            if draw.random() < 0.7 and colon:
                key = draw.choice(
                    [key, key[: len(key) - len(key.lstrip())] + draw.choice([*KNOWN])]
                )
                lines[at] = f"{key}: {draw.choice(ODD)}"
            else:
                cut = draw.randrange(len(lines[at]) + 1)
                lines[at] = (
                    lines[at][:cut] + draw.choice("\x00{}[]:,&*!|>'\"%@` -#?é") + lines[at][cut:]
                )
        try:
            became = read("\n".join(lines)).became
            told = [text for one in became for text in (one.field, one.value, one.meaning)]
        except (RequestError, RefusedError) as error:
            told = str(error).split("\n")
        assert all(text.isprintable() for text in told)
