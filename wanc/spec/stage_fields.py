"""The fields of a vLLM-Omni stage that wanc knows: what each becomes, and all of them together.

Values are text as it stands in the file, lists or mappings. Knows no file.

Sources: DiffusionParallelConfig and OmniDiffusionConfig of vllm_omni/diffusion/data.py in
vllm-project/vllm-omni; for ``model_config``, the models of aws-neuron/vllm-omni-neuron.
"""

import re
from collections.abc import Callable, Iterator, Set
from pathlib import PurePosixPath
from typing import Any

from wanc.errors import RefusedError, RequestError
from wanc.spec.model import TRAIN_TIMESTEPS, Task
from wanc.spec.presets import PRESETS
from wanc.spec.sets import Request
from wanc.spec.target import Precision
from wanc.spec.topology import GUIDANCE_BRANCHES, Topology
from wanc.spec.variant import Attention

NESTED = ("runtime", "engine_args", "parallel_config", "model_config", "default_sampling_params")
"""Mappings whose fields go by their own names, wherever the mapping stands."""
AXES = {"tp": "tensor_parallel_size", "cp": "ring_degree", "cfg": "cfg_parallel_size"}
SIDES = ("width", "height", "num_frames")
MOST = 1 << 16
"""Of any degree, and of the cores of a stage."""

PIPELINE_MODELS = {
    "wan2_2_t2v": "wan2.2-t2v-a14b",
    "wan2_2_i2v": "wan2.2-i2v-a14b",
    "wan2_2_ti2v": "wan2.2-ti2v-5b",
}
"""Presets, by vLLM-Omni's names of pipelines."""

PIPELINES: dict[str, Task] = {
    "Wan22Pipeline": "t2v",
    "WanPipeline": "t2v",
    "Wan22I2VPipeline": "i2v",
    "WanImageToVideoPipeline": "i2v",
}
DTYPES: dict[str, Precision] = {
    **dict.fromkeys(("auto", "bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}
RING_ATTENTION: dict[str, Attention] = {"true": "ring", "false": "allgather"}
RUN_OPTIONS = {
    "vae_patch_parallel_size": "--vae-ranks",
    "flow_shift": "--flow-shift",
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "seed": "--seed",
}
"""Fields that do not change a bundle, and the option of ``wanc run`` for each."""

Reading = Callable[[Any], str]
"""Says what a value becomes; raises RequestError or RefusedError."""


def meaning(name: str, value: Any) -> str:
    """What a field becomes, whatever it is; raises RequestError or RefusedError."""
    if name not in KNOWN:
        return "not used by wanc"
    if value is None:
        return "not given"
    becomes = KNOWN[name](value)
    return f"wanc run {RUN_OPTIONS[name]} {becomes}" if name in RUN_OPTIONS else becomes


def request_of(values: dict[str, Any]) -> Request:
    """What fields with right values ask of a compile."""
    dtype, ring = values.get("dtype"), values.get("enable_ring_attention")
    sides = [values[side] for side in SIDES if side in values]
    return Request(
        model=_model(values),
        shapes=("x".join(sides),) if len(sides) == len(SIDES) else (),
        topologies=(str(_topology(values)),),
        precision=DTYPES[dtype.lower()] if dtype else None,
        attention=RING_ATTENTION[ring.lower()] if ring else None,
    )


def run_options(values: dict[str, Any]) -> Iterator[str]:
    """Options of ``wanc run``, each with its value."""
    for name, option in RUN_OPTIONS.items():
        if name in values:
            low = values.get("guidance_scale_2") if name == "guidance_scale" else None
            yield from (option, f"high={values[name]},low={low}" if low else values[name])


def contradictions(values: dict[str, Any], given: Set[str]) -> Iterator[tuple[str, str]]:
    """Fields that do not go with the degrees, and why; given are those with wrong values too."""
    if given & {*AXES.values(), "ulysses_degree"} - values.keys():
        return  # how many ranks there are is not known
    topology = _topology(values)
    has = f"{topology} has {topology.ranks} ranks"
    if int(said := values.get("sequence_parallel_size", topology.cp)) != topology.cp:
        yield "sequence_parallel_size", f"is {said}, and ring_degree is {topology.cp}"
    if "devices" in values and len(cores := cores_of(values["devices"])) < topology.ranks:
        yield "devices", f"names {len(cores)} cores, and {has}"
    if int(said := values.get("vae_patch_parallel_size", 1)) > topology.ranks:
        yield "vae_patch_parallel_size", f"is {said}, and {has}"


def _topology(values: dict[str, Any]) -> Topology:
    return Topology(**{axis: int(values.get(name, 1)) for axis, name in AXES.items()})


def _model(values: dict[str, Any]) -> str | None:
    """The model that the stage names or, by its pipeline and boundary, can only mean."""
    if "model" in values:
        name = str(values["model"])
        preset = PurePosixPath(name).name.lower().removesuffix("-diffusers")
        return preset if preset in PRESETS else name
    if "pipeline" in values:
        return PIPELINE_MODELS[values["pipeline"]]
    task = PIPELINES.get(values.get("model_class_name", ""))
    if task == "t2v" and "boundary_ratio" not in values:
        return None  # with one expert or two
    return next((model.name for model in PRESETS.values() if model.task == task), None)


def cores_of(value: Any) -> set[int]:
    """Cores of ``0-63``, ``0,1,2`` or a list of such parts; raises RequestError."""
    cores: set[int] = set()
    for part in value if isinstance(value, list) else str(value).split(","):
        match = re.fullmatch(r" *([0-9]{1,5})(?: *- *([0-9]{1,5}))? *", str(part))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST:
            raise RequestError("is not a list of cores, such as 0-63 or 0,1,2,3")
        cores.update(range(first, last + 1))
    return cores


def _mapping(value: Any) -> str:
    raise RequestError("is not a mapping of fields")


def _number(kind: type[int] | type[float], least: float, most: float, becomes: str) -> Reading:
    def read(value: Any) -> str:
        try:
            right = least <= kind(str(value)) <= most
        except ValueError:
            right = False
        if not right:
            whole = "whole number" if kind is int else "number"
            raise RequestError(f"is not a {whole} from {least} to {most}")
        return becomes.format(value)

    return read


def _degree(becomes: str, most: int = MOST) -> Reading:
    return _number(int, 1, most, becomes)


def _only(becomes: dict[str, str], instead: str) -> Reading:
    """What wanc has, by values, where it refuses all others."""

    def read(value: Any) -> str:
        text = str(value)
        found = becomes.get(text, becomes.get(text.lower()))
        if found is None:
            raise RefusedError(f"is not supported: {instead} would work")
        return found

    return read


_UNQUANTIZED = _only(dict.fromkeys(("none", "auto", "bf16"), "no quantization"), "precision bf16")
_RING = _only({"1": "ring_degree splits tokens"}, "1, with ring_degree that much larger,")

KNOWN: dict[str, Reading] = {
    **dict.fromkeys(NESTED, _mapping),
    "base_config": _only({}, "that file merged into this one"),
    "stage_type": lambda _: "the stage that is read",
    # what is compiled
    "model": lambda _: "the model, or its folder",
    "model_class_name": _only(
        {name: f"task {task}" for name, task in PIPELINES.items()}, " or ".join(PIPELINES)
    ),
    "pipeline": _only(
        {name: f"model {model}" for name, model in PIPELINE_MODELS.items()},
        " or ".join(PIPELINE_MODELS),
    ),
    "boundary_ratio": _number(float, 0, 1, "two experts; they meet where the checkpoint says"),
    "dtype": _only(
        {name: f"precision {bits}" for name, bits in DTYPES.items()}, "bfloat16 or float32"
    ),
    "quantization": _UNQUANTIZED,
    "quantization_config": _UNQUANTIZED,
    "diffusion_quantization_config": _UNQUANTIZED,
    "diffusion_kv_cache_dtype": _UNQUANTIZED,
    "lora_path": _only({}, "a checkpoint that it is merged into"),
    **{side: _degree(f"{side} of the shape") for side in SIDES},
    # how it is split
    "devices": lambda value: f"{len(cores_of(value))} cores; wanc counts them from 0",
    "tensor_parallel_size": _degree("tp{}"),
    "ring_degree": _degree("cp{}"),
    "cfg_parallel_size": _degree("cfg{}", GUIDANCE_BRANCHES),
    "sequence_parallel_size": _degree("cp{}"),
    "ulysses_degree": _RING,
    "allgather_degree": _RING,
    "enable_ring_attention": _only(
        {value: f"attention {name}" for value, name in RING_ATTENTION.items()}, "true or false"
    ),
    "tp_sequence_parallel": lambda _: "wanc always splits tokens over tp",
    "data_parallel_size": _only({"1": "one replica"}, "1, with a wanc run for each replica,"),
    "pipeline_parallel_size": _only({"1": "all layers on a rank"}, "1, with more tp or cp,"),
    "use_hsdp": _only({"false": "tp splits weights"}, "false, with tensor_parallel_size,"),
    # how it is run
    "vae_patch_parallel_size": _degree("{}"),
    "vae_use_tiling": lambda _: "wanc always decodes in tiles",
    "flow_shift": _number(float, 0.001, 1000, "{}"),
    "num_inference_steps": _degree("{}", TRAIN_TIMESTEPS),
    "guidance_scale": _number(float, 0, 1000, "{}"),
    "guidance_scale_2": _number(float, 0, 1000, "low={} in wanc run --guidance"),
    "seed": _number(int, 0, (1 << 64) - 1, "{}"),
}
"""Fields by name, and what is made of their values."""
