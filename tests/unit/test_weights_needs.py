"""What a variant needs of a checkpoint, and how a checkpoint that lacks it is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from wanc.errors import WeightsError
from wanc.plan.abi import Weight
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.weights.checkpoint import Component
from wanc.weights.needs import Need, check_weights, schedule_needs
from wanc.weights.stored import Cut, StoredTensor

TABLE = Need(component="text_encoder", names=EMBEDDING_NAMES, shape=(1024, 64))
NORM = Need(component="text_encoder", names=("encoder.final_layer_norm.weight",), shape=(64,))
UNUSED = {"text_encoder": EMBEDDING_NAMES, "vae": ("encoder.", "quant_conv.")}


def component(name="text_encoder", *, dtypes=(), **shapes) -> Component:
    """A component with tensors of these shapes; a double underscore stands for a dot."""
    tensors = {
        key.replace("__", "."): StoredTensor(
            file=Path("x.safetensors"), shape=shape, dtype=dict(dtypes).get(key, "F32")
        )
        for key, shape in shapes.items()
    }
    return Component(name=name, tensors=tensors)


def check(*components, needs):
    check_weights({c.name: c for c in components}, needs, unused=UNUSED)


def refusal(*components, needs) -> str:
    with pytest.raises(WeightsError) as caught:
        check(*components, needs=needs)
    assert caught.value.exit_code == 6
    return str(caught.value)


def need(*names, shape=(2,), folder="vae") -> Need:
    return Need(component=folder, names=names, shape=shape)


def test_layers_of_a_call_are_filled_in():
    weight = Weight(name="w", tensor="blocks.{1}.x", stored_shape=(), shape=(), dtype="float32")
    assert weight.tensor_in((7, 12)) == "blocks.12.x"
    plain = Weight(name="w", tensor="x.weight", stored_shape=(), shape=(), dtype="float32")
    assert plain.tensor_in(()) == "x.weight"


def test_needs_of_a_schedule_are_whole_tensors_each_once(plan):
    needs = {}
    for topology in ("tp1", "tp4-cp2"):
        planned = plan(topology=topology)
        programs = {program.name: program for program in planned.programs}
        needs[topology] = schedule_needs(planned.schedule, programs)
        named = [(need.component, need.names) for need in needs[topology]]
        assert len(set(named)) == len(named)
    whole = [sorted((replace(n, cuts=()) for n in needs[t]), key=repr) for t in needs]
    assert whole[0] == whole[1]


def test_needs_of_a_schedule_say_how_each_tensor_is_cut(plan):
    planned = plan(topology="tp4-cp2", precision="bf16")
    programs = {program.name: program for program in planned.programs}
    needs = {need.names[0]: need.cuts for need in schedule_needs(planned.schedule, programs)}
    assert needs["blocks.1.attn1.to_out.0.weight"] == (Cut(dim=1, degree=4, dtype="bfloat16"),)
    assert needs["blocks.1.norm2.weight"] == (Cut(dim=None, degree=1, dtype="float32"),)
    assert {len(cuts) for cuts in needs.values()} == {1}


@pytest.mark.parametrize(
    "tables",
    [
        {"shared__weight": (1024, 64)},
        {"encoder__embed_tokens__weight": (1024, 64)},
        {"shared__weight": (1024, 64), "encoder__embed_tokens__weight": (1024, 64)},
    ],
    ids=["shared", "embed_tokens", "both"],
)
def test_embedding_table_may_have_either_name_or_both(tables):
    check(component(encoder__final_layer_norm__weight=(64,), **tables), needs=[TABLE, NORM])


def test_checkpoint_without_any_embedding_table_is_refused():
    message = refusal(component(encoder__final_layer_norm__weight=(64,)), needs=[TABLE, NORM])
    assert "text_encoder/shared.weight or encoder.embed_tokens.weight 1024x64" in message


def test_either_table_of_another_shape_is_refused():
    for name in ("shared__weight", "encoder__embed_tokens__weight"):
        message = refusal(component(**{name: (1000, 64)}), needs=[TABLE])
        assert f"{name.replace('__', '.')} is 1000x64; needs 1024x64" in message


def test_missing_extra_misshapen_and_odd_are_one_error():
    vae = component(
        "vae",
        dtypes=[("odd", "I64")],
        wrong=(3,),
        odd=(2,),
        surplus=(1,),
        encoder__conv_in__weight=(9, 9),
    )
    text = component(shared__weight=(2, 2), stray=())
    needs = [need("absent"), need("wrong"), need("odd"), TABLE]
    assert refusal(vae, text, needs=needs).split("\n") == [
        "the checkpoint's tensors are not those that the bundle needs:",
        "  1 missing:",
        "    vae/absent 2",
        "  2 extra:",
        "    vae/surplus",
        "    text_encoder/stray",
        "  2 of another shape:",
        "    vae/wrong is 3; needs 2",
        "    text_encoder/shared.weight is 2x2; needs 1024x64",
        "  1 of a dtype:",
        "    vae/odd is I64; needs F32, BF16, F16",
    ]


def test_parts_that_no_program_takes_are_neither_needed_nor_extra():
    check(component("vae", w=(2,), encoder__x=(1,), quant_conv__weight=(5,)), needs=[need("w")])
    assert "1 extra:\n    vae/encoder_x" in refusal(
        component("vae", w=(2,), encoder_x=(1,)), needs=[need("w")]
    )


def test_fine_checkpoint_passes_and_shape_is_compared_in_order():
    check(component("vae", w=(2, 3)), needs=[need("w", shape=(2, 3))])
    assert "3x2; needs 2x3" in refusal(component("vae", w=(3, 2)), needs=[need("w", shape=(2, 3))])
    assert "scalar; needs 2" in refusal(component("vae", w=()), needs=[need("w")])


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F64", "I32", "BOOL"])
def test_dtype_that_is_not_cast_is_refused(dtype):
    assert f"vae/w is {dtype}" in refusal(
        component("vae", dtypes=[("w", dtype)], w=(2,)), needs=[need("w")]
    )


def test_long_lists_are_cut_and_counted():
    message = refusal(component("vae"), needs=[need(f"w{i}") for i in range(1_000)])
    assert "  1000 missing:" in message
    assert "… and 988 more" in message
    assert len(message) < 1_000


def test_tensor_that_is_prepared_for_other_programs_is_refused():
    file = Path("x.safetensors")
    halves = StoredTensor(file=file, shape=(8, 4), dtype="F32", dim=0, parts=(file, file))
    whole = StoredTensor(file=file, shape=(8, 4), dtype="BF16", parts=(file,))
    vae = Component(name="vae", tensors={"a": halves, "b": halves, "c": whole, "d": whole})
    cuts = {
        "a": Cut(dim=0, degree=2, dtype="float32"),
        "b": Cut(dim=0, degree=4, dtype="float32"),
        "c": Cut(dim=None, degree=1, dtype="bfloat16"),
        "d": Cut(dim=None, degree=1, dtype="float32"),
    }
    needs = [replace(need(name, shape=(8, 4)), cuts=(cut,)) for name, cut in cuts.items()]
    assert refusal(vae, needs=needs).split("\n")[1:] == [
        "  2 prepared for other programs "
        "(`wanc weights shard` prepares the original checkpoint for a bundle):",
        "    vae/b is 2 parts of dim 0 in float32; needs 4 parts of dim 0 in float32",
        "    vae/d is whole in bfloat16; needs whole in float32",
    ]
