"""What is proposed in place of what is refused, and the ranking of topologies."""

import json
import re
from types import SimpleNamespace

import pytest

from tests.planned import A14B, TI2V, asked, planned
from wanc.cli import main
from wanc.errors import RefusedError, RequestError
from wanc.plan.plan import make_plan, work_out
from wanc.plan.propose import best_topologies, topologies
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options


def refusal(*args, **kwargs) -> str:
    with pytest.raises(RefusedError) as caught:
        planned(*args, **kwargs)
    assert caught.value.exit_code == 3
    return str(caught.value)


def proposed(message: str, flag: str) -> list[tuple[str, int]]:
    """Values that a message proposes for a flag, with their predicted seconds."""
    first, *_ = message.splitlines()
    found = re.search(rf"would work[^:]*:.*?--{flag} (.*?)(?: or --|$)", first)
    values = re.findall(r"([^,]+?) \((\d+) s\)", found[1]) if found else []
    return [(value.strip(), int(seconds)) for value, seconds in values]


def ranked(shape="1280x720x81", cores=64, **kwargs):
    model, variant = asked(shape, **kwargs)
    return best_topologies(
        model, variant, Options(), cores, lambda v, options: work_out(model, v, options)
    )


# --- in place of what is refused -----------------------------------------------------------------


@pytest.mark.parametrize("topology", ["tp16", "tp5", "tp3-cfg2", "tp4-cp12", "tp8-cp3-cfg2"])
@pytest.mark.parametrize("shape", ["832x480x81", "1280x720x81"])
def test_topologies_are_proposed_fastest_first_and_work(shape, topology):
    found = proposed(refusal(shape, topology), "topology")
    assert 0 < len(found) <= 3
    assert [seconds for _, seconds in found] == sorted(seconds for _, seconds in found)
    for text, seconds in found:
        plan = planned(shape, text)
        assert plan.cost.kernels.seconds == pytest.approx(seconds, abs=0.5)
        assert 2 * plan.variant.topology.ranks >= Topology.parse(topology).ranks


def test_first_part_of_a_refusal_says_what_was_wrong():
    message = refusal(topology="tp16")
    assert "tp16: 16 does not divide 40 attention heads; those that do are tp1, tp2, tp4" in message
    assert "5 does not divide 13824 ffn width" in refusal(topology="tp5")
    assert "the ranks must divide the 64 cores" in refusal(topology="tp4-cp12")
    assert "128 ranks are more than the 64 cores" in refusal(topology="tp8-cp8-cfg2")


def test_48_ranks_are_offered_the_whole_instance():
    found = proposed(refusal("832x480x81", "tp8-cp3-cfg2"), "topology")
    assert {Topology.parse(text).ranks for text, _ in found} == {64}


def test_group_that_the_torus_cannot_route_is_offered_the_placement_that_can():
    message = refusal(topology="tp8-cp4-cfg2", placement="linear")
    assert "which no ring of links joins" in message
    assert proposed(message, "placement") == [
        ("trn2-torus", pytest.approx(planned().cost.kernels.seconds, abs=0.5))
    ]


def test_too_few_ranks_for_the_memory_are_offered_more():
    found = proposed(refusal(topology="tp1"), "topology")
    assert found
    assert all(Topology.parse(text).ranks > 1 for text, _ in found)
    assert "would work" in refusal(topology="tp1", target="trn3")


def test_picture_beyond_every_core_is_offered_smaller_ones():
    whole = Shape.parse("1280x720x1025")
    message = refusal(str(whole), "tp8-cp4-cfg2")
    found = [Shape.parse(text) for text, _ in proposed(message, "shape")]
    assert found
    for shape in found:
        fewer, narrower = shape.frames < whole.frames, shape.width_px < whole.width_px
        assert fewer is not narrower


def test_programs_too_large_for_their_rings_are_offered_smaller_ones():
    asked = {"blocks_per_program": 10}
    message = refusal("1280x720x321", "tp8-cp4-cfg2", options=asked)
    ((blocks, _),) = proposed(message, "blocks-per-program")
    assert planned("1280x720x321", options={"blocks_per_program": int(blocks)})


def test_fp32_that_does_not_fit_is_offered_bf16():
    found = proposed(refusal(topology="tp8-cp2", precision="fp32"), "precision")
    assert [value for value, _ in found] == ["bf16"]


def test_shape_off_the_grain_is_offered_the_nearest():
    message = refusal("1280x720x121", "tp4-cp8-cfg2", model=TI2V)
    assert "height 720 is not a multiple of 32; nearest are 704 and 736" in message
    assert [text for text, _ in proposed(message, "shape")] == ["1280x704x121", "1280x736x121"]


def test_cpu_is_offered_shapes_and_nothing_that_needs_times():
    message = refusal("1280x720x121", "tp1", model=TI2V, target="cpu")
    assert message.endswith("would work: --shape 1280x704x121, 1280x736x121")
    assert "would work" not in refusal(topology="tp3", target="cpu")


def test_limit_on_ranks_holds_for_proposals_too():
    model, variant = asked("832x480x81", "tp8-cp4-cfg2")
    with pytest.raises(RefusedError) as caught:
        make_plan(model, variant, Options(), max_ranks=32)
    found = proposed(str(caught.value), "topology")
    assert found
    assert all(Topology.parse(text).ranks <= 32 for text, _ in found)


def test_third_guidance_branch_names_a_topology_that_could_work():
    with pytest.raises(RequestError, match="two guidance branches; try tp4-cp8-cfg2"):
        Topology.parse("tp4-cp8-cfg3")


# --- rankings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["832x480x81", "1280x720x81"])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_ranking_is_fastest_first_within_memory_on_all_cores(shape, target):
    plans = ranked(shape, target=target)
    times = [plan.cost.kernels.seconds for plan in plans]
    assert times == sorted(times)
    assert all(plan.memory_bytes <= plan.hbm_bytes for plan in plans)
    assert {plan.variant.topology.ranks for plan in plans} == {64}
    assert {"tp4-cp8-cfg2", "tp8-cp4-cfg2"} <= {str(plan.variant.topology) for plan in plans}


def test_idle_cores_are_proposed_only_where_all_cores_cannot_be_used():
    assert {plan.variant.topology.ranks for plan in ranked("832x480x81", 48)} == {32}


def test_idle_cores_are_proposed_where_they_are_faster():
    """As where a ring of more ranks only adds hops: tp4-cp3 beats all of 16 ranks, cp9 few."""
    model, variant = asked("208x128x5", "tp1", model="tiny", target="trn3")

    def attempt(variant, options):
        topology = variant.topology
        seconds = {"tp4-cp3": 1.0, "cp16": 2.0, "cp9": 3.0, "tp8-cp2": 4.0}.get(str(topology))
        if seconds is None:
            raise RefusedError("none of those")
        kernels = SimpleNamespace(seconds=seconds)
        return SimpleNamespace(variant=variant, cost=SimpleNamespace(kernels=kernels))

    plans = best_topologies(model, variant, Options(), 16, attempt)
    assert [str(plan.variant.topology) for plan in plans] == ["tp4-cp3", "cp16", "tp8-cp2"]


def test_no_topology_within_the_cores_gives_none():
    assert ranked("1280x720x81", 4) == []


@pytest.mark.parametrize(("target", "cores"), [("trn2", 64), ("trn2", 48), ("trn3", 64)])
def test_candidates_are_distinct_and_legal(target, cores):
    model, variant = asked(target=target)
    found = list(topologies(model, variant, cores))
    assert len(found) == len(set(found))
    assert all(t.tp in (1, 2, 4, 8) and t.ranks <= cores for t in found)


# --- on the command line -------------------------------------------------------------------------


def run(line: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


AUTO = f"plan --model {A14B} --target trn2 --topology auto"


def test_auto_prints_a_table_that_fits_80_columns(capsys):
    code, out, _ = run(f"{AUTO} --shape 832x480x81 --shape 1280x720x81 --cores 64", capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for shape in ("832x480x81", "1280x720x81"):
        assert f"t2v {shape} bf16 trn2: topologies for 64 cores, fastest first" in out
    assert re.search(r"tp8-cp4-cfg2 +64 .* s .* s +compute \d+% .* GiB", out)


def test_auto_as_json(capsys):
    code, out, _ = run(f"{AUTO} --shape 832x480x81 --json", capsys)
    assert code == 0
    proposals = json.loads(out)["proposals"]
    assert proposals[0]["variant"]["topology"] == "tp4-cp8-cfg2"
    for one in proposals:
        assert one["ranks"] == 64
        assert one["memory_bytes"] < one["hbm_bytes"]
        assert one["cost"]["kernels"]["seconds"] < one["cost"]["stablehlo"]["seconds"]


def test_plan_for_people_fits_80_columns(capsys):
    line = f"plan --model {A14B} --target trn2 --shape 1280x720x81 --topology tp4-cp8-cfg2"
    code, out, _ = run(line, capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in ("Memory of a core", "margin", "Predicted times", "limited by", "calibrated"):
        assert words in out


def test_plan_as_json_has_work_times_and_limits(capsys):
    line = "plan --target trn2 --shape 832x480x81 --topology tp8-cp4-cfg2 --json"
    code, out, _ = run(line, capsys)
    assert code == 0
    told = json.loads(out)
    (plan,) = told["variants"]
    assert plan["memory_bytes"] < plan["hbm_bytes"]
    assert plan["cost"]["kernels"]["step"]["limited_by"] == "compute"
    assert plan["cost"]["stablehlo"]["seconds"] > plan["cost"]["kernels"]["seconds"]
    assert plan["step"]["flops"] == 64 * plan["step"]["rank_flops"]
    assert plan["step"]["rank_hbm_bytes_stablehlo"] > plan["step"]["rank_hbm_bytes"]
    assert plan["communicators"] == {
        "text_encoder": 1,
        "dit_context": 1,
        "dit_blocks": 2,
        "dit_head": 3,
    }
    assert plan["compiles"] == told["compiles"] == len(plan["programs"])


def test_variants_that_share_programs_compile_them_once(capsys):
    line = "plan --target trn2 --shape 832x480x81 --shape 480x832x81 --topology tp8-cp4"
    code, out, _ = run(line, capsys)
    assert code == 0
    assert out.rstrip().endswith("2 variants, 7 programs to compile")


def test_auto_says_what_became_of_a_stage_file(capsys, tmp_path):
    stage = tmp_path / "stage.yaml"
    stage.write_text("stages:\n- stage_type: diffusion\n  dtype: bfloat16\n")
    line = f"{AUTO} --shape 832x480x81 --from-stage {stage}"
    code, out, _ = run(line, capsys)
    assert code == 0
    assert "Stage file" in out
    assert "topologies for 64 cores" in out
    code, out, _ = run(f"{line} --json", capsys)
    told = json.loads(out)
    assert {"field": "dtype", "value": "bfloat16", "meaning": "precision bf16"} in (
        told["stage"]["became"]
    )
    assert told["proposals"]


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (f"{AUTO} --shape 1280x720x81 --cores 4", 3, "in bf16; try --cores 8"),
        (f"{AUTO} --shape 1280x720x81 --max-ranks 4", 3, "can hold 1280x720x81 in bf16\n"),
        (f"{AUTO} --shape 1280x720x81 --cores 65", 3, "65 cores are more than the 64 of one trn2"),
        ("plan --target cpu --shape 832x480x81 --topology auto", 3, "try --target trn2 or --targ"),
        (f"{AUTO} --topology tp4 --shape 832x480x81", 2, "topology auto: choose one"),
        ("compile --target cpu --shape 832x480x81 --topology auto -o b", 2, "auto: choose one"),
        ("plan --target trn2 --shape 832x480x81 --cores 8", 2, "--cores goes with --topology auto"),
    ],
)
def test_what_auto_refuses(line, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen, out, err = run(line, capsys)
    assert seen == code
    assert not out
    assert says in err
    assert not list(tmp_path.iterdir())
