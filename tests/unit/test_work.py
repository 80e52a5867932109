"""FLOPs, bytes and calls of stages, against formulas written by hand.

tests/cpu/test_abi_presets.py compares the same numbers with what the graphs do.
"""

import pytest

from tests.planned import A14B, TI2V, planned
from wanc.plan.vae import convolutions
from wanc.plan.work import Work, call_work
from wanc.spec.presets import PRESETS

TEXT_TOKENS = 512


def step_flops(model, tokens: int) -> int:
    """One guided step: 2·P·L of the projections, 4·L²·D of attention a layer, and the ends."""
    dit = PRESETS[model].transformer
    width, patch = dit.width, 4
    in_layer = 6 * width**2 + 2 * width * dit.ffn_width
    layer = 2 * tokens * in_layer + 4 * tokens**2 * width + 4 * tokens * TEXT_TOKENS * width
    ends = 2 * tokens * width * patch * (dit.in_channels + 2 * dit.out_channels)
    return 2 * dit.layers * layer + ends  # tokens are embedded once for both branches


def timestep_flops(model) -> int:
    """A row, or two, through the time embedder and to six modulations."""
    dit = PRESETS[model].transformer
    rows = 2 if PRESETS[model].task == "ti2v" else 1
    return rows * 2 * (dit.frequency_width * dit.width + 7 * dit.width**2)


def of_program(plan, name: str) -> dict[str, Work]:
    (program,) = (program for program in plan.programs if program.name == name)
    return call_work(program)


@pytest.mark.parametrize(
    ("model", "shape", "topology", "tokens"),
    [
        (A14B, "832x480x81", "cp8", 32_760),
        (A14B, "832x480x81", "tp2-cp2", 32_760),
        (A14B, "1280x720x81", "tp8-cp2", 75_600),
        (TI2V, "1280x704x121", "tp4-cp4", 27_280),
    ],
)
def test_step_of_all_ranks_is_the_formula(model, shape, topology, tokens):
    plan = planned(shape, topology, model=model, target="cpu")
    ranks = plan.variant.topology.ranks
    each = plan.stage_work("step").total.flops - timestep_flops(model)
    assert ranks * each == step_flops(model, tokens)


def test_cfg_halves_what_a_rank_does_and_not_the_whole():
    one, two = (planned("832x480x81", t, target="cpu") for t in ("tp2-cp2", "tp2-cp2-cfg2"))
    parts = [plan.stage_work("step").parts for plan in (one, two)]
    for name in ("projections", "feed-forward", "self-attention", "cross-attention"):
        assert parts[0][name].flops == 2 * parts[1][name].flops
    assert parts[0]["embedding"] == parts[1]["embedding"], "both branches share one embedding"


def test_masked_pads_are_work_too():
    plan = planned("432x240x33", "cp7", target="cpu")
    assert plan.tokens.masked
    (blocks,) = (program for program in plan.programs if program.kind == "dit_blocks")
    heads, width = 40, 128
    pairs = 521 * (7 * 521)
    layers = blocks.definition["layers"]
    assert call_work(blocks)["self-attention"].flops == layers * 4 * heads * width * pairs


@pytest.mark.parametrize(("precision", "narrow"), [("bf16", True), ("fp32", False)])
def test_flops_are_of_the_operands_dtype(precision, narrow):
    plan = planned(precision=precision, target="cpu")
    step, decode = plan.stage_work("step").total, plan.stage_work("decode").total
    assert (step.bf16_flops > 0) is narrow
    assert 0 < step.fp32_flops < step.bf16_flops / 1e6 or not narrow  # the time embedder
    assert decode.bf16_flops == 0


def test_scores_are_the_published_640_mib_a_ring_step():
    """480p, tp4-cp8: 10 heads, a chunk of 4,095 tokens; three passes in fp32 and two in bf16."""
    plan = planned("832x480x81", "tp4-cp8")
    (blocks,) = (program for program in plan.programs if program.kind == "dit_blocks")
    scores = 10 * 4_095**2
    assert 4 * scores == pytest.approx(640 * 2**20, rel=1e-3)
    passes = 3 * 4 + 2 * 2
    sums = 4 * 4 * 10 * 4_095 * 128
    each_layer = 8 * (passes * scores + sums)
    layers = blocks.definition["layers"]
    assert call_work(blocks)["self-attention"].score_bytes == layers * each_layer


def test_kernels_leave_out_scores_and_nothing_else():
    step = planned().stage_work("step").total
    assert step.score_bytes > 10 * step.hbm_bytes
    assert step.hbm_bytes > 0


def test_collectives_of_a_block_by_hand():
    """720p, tp8-cp4: chunks of 18,900 tokens padded to 18,904; 2,363 on each of tp's ranks."""
    plan = planned("1280x720x81", "tp8-cp4-cfg2", options={"blocks_per_program": 10})
    blocks = of_program(plan, "dit_blocks")
    layers, width, heads = 10, 5_120, 5
    shard = 2_363 * width * 2
    sent = blocks["collectives"]
    assert sent.gathered_bytes == sent.scattered_bytes == layers * 3 * 7 * shard
    assert sent.reduced_bytes == layers * (2 * 7 * 3 * 18_900 * 4 // 8)
    ring = blocks["self-attention"].permuted_bytes
    assert ring == layers * 3 * 2 * heads * 18_900 * 128 * 2
    head = of_program(plan, "dit_head")["collectives"].gathered_bytes
    row = 64 * 4
    assert head == row * (7 * 2_363 + 3 * 18_900 + 75_600)


def test_memory_that_a_block_reads_and_writes_by_hand():
    """720p, tp8-cp4: weights once, rows in and out; each query tile reads all keys and values."""
    parts = of_program(planned(options={"blocks_per_program": 1}), "dit_blocks")
    chunk, width, part, ffn, bf16 = 18_900, 5_120, 640, 1_728, 2
    linear = width * part + chunk * (width + part)
    assert parts["projections"].hbm_bytes == bf16 * 6 * linear
    assert parts["feed-forward"].hbm_bytes == bf16 * 2 * (width * ffn + chunk * (width + ffn))
    tiles, ring = 7, 4  # of 2,700 queries; arrivals of keys are in the 75,600
    assert parts["self-attention"].hbm_bytes == bf16 * 2 * part * (chunk + tiles * ring * chunk)
    assert parts["cross-attention"].hbm_bytes == bf16 * 2 * part * (chunk + TEXT_TOKENS)
    assert parts["collectives"].hbm_bytes == 0


def test_memory_that_a_decoder_reads_and_writes_by_hand():
    """All that goes in and out of the call, and of each convolution in fp32."""
    plan = planned("208x128x5", "tp1", model="tiny")
    (rest,) = (program for program in plan.programs if program.kind == "vae_decode_rest")
    call = sum(tensor.bytes for tensor in (*rest.weights, *rest.inputs, *rest.outputs))
    each = sum(4 * (c.inputs + c.outputs) * c.positions for c in convolutions(rest))
    assert call_work(rest)["convolutions"].hbm_bytes == call + each


def test_allgather_sends_what_the_ring_passes_on():
    ring, gather = (
        of_program(planned("832x480x81", "tp4-cp8", options={"attention": how}), "dit_blocks")
        for how in ("ring", "allgather")
    )
    passed = ring["self-attention"].permuted_bytes
    assert gather["collectives"].gathered_bytes == ring["collectives"].gathered_bytes + passed
    assert gather["self-attention"].permuted_bytes == 0


def test_one_rank_sends_nothing():
    for stage in planned("208x128x5", "tp1", model="tiny", target="cpu").work:
        assert stage.total.sent_bytes == 0


@pytest.mark.parametrize(
    ("topology", "blocks", "launches"),
    [
        ("tp8-cp4-cfg2", 10, 1 + 4 + 1),
        ("tp8-cp4", 10, 1 + 2 * (4 + 1)),
        ("tp8-cp4", 40, 1 + 2 * (1 + 1)),
    ],
)
def test_calls_of_a_step(topology, blocks, launches):
    plan = planned(topology=topology, options={"blocks_per_program": blocks})
    assert plan.stage_work("step").launches == launches
    branches = 1 if "cfg2" in topology else 2
    assert plan.stage_work("encode_text").launches == branches
    groups = 40 // blocks
    assert plan.stage_work("context").launches == 2 * branches * groups  # of both experts


def test_blocks_in_a_program_do_not_change_the_work():
    whole, cut = (planned(options={"blocks_per_program": n}).stage_work("step") for n in (40, 5))
    for name in ("projections", "self-attention", "cross-attention", "feed-forward"):
        assert whole.parts[name] == cut.parts[name]


@pytest.mark.parametrize(
    ("shape", "topology", "tiles", "waves"),
    [
        ("832x480x81", "tp4-cp4", 12, 1),
        ("1280x720x81", "tp8-cp2", 28, 2),
        ("1280x720x81", "tp8-cp4", 28, 1),
        ("1280x720x81", "tp8", 28, 4),
    ],
)
def test_waves_of_tiles(shape, topology, tiles, waves):
    plan = planned(shape, topology, target="cpu")
    decode = plan.stage_work("decode")
    assert len(plan.tiles.tiles) == tiles
    assert (decode.waves, decode.launches) == (waves, waves * 21)
    one = planned(shape, "tp8-cp8", target="cpu").stage_work("decode")
    assert decode.total == one.total * waves


def test_every_latent_frame_after_the_first_is_four_frames_of_convolutions():
    first, rest = (p for p in planned().programs if p.ranks == "one")
    frames = {name: (one, four) for name, one, four in _frames(first, rest)}
    assert frames["decoder.conv_in"] == (1, 1)
    assert frames["decoder.up_blocks.1.resnets.0.conv1"] == (1, 2)
    assert frames["decoder.conv_out"] == (1, 4)
    met = {c.name for c in convolutions(rest)} - set(frames)
    assert met == {f"decoder.up_blocks.{i}.upsamplers.0.time_conv" for i in (0, 1)}


def _frames(first, rest):
    later = {c.name: c.frames for c in convolutions(rest)}
    return ((c.name, c.frames, later[c.name]) for c in convolutions(first))


def test_last_convolution_by_hand():
    _, rest = (p for p in planned().programs if p.ranks == "one")
    *_, last = convolutions(rest)
    assert (last.inputs, last.outputs, last.taps) == (96, 3, 27)
    assert last.positions == 4 * 256 * 256


def test_other_grids_take_the_busiest_rank():
    """diffusers' grid cuts edge tiles short: the rank of whole tiles is the busiest."""
    grids = [
        planned("832x480x81", "tp8-cp2", target="cpu", options={"vae_tiles": g}) for g in GRIDS
    ]
    even, cut = (plan.stage_work("decode") for plan in grids)
    assert len(grids[1].tiles.shapes) == 4
    assert cut.total.flops == even.total.flops


GRIDS = ("even", "diffusers")


def test_sums_and_products_of_work():
    one = Work(bf16_flops=1, fp32_flops=2, gathered_bytes=3, permuted_bytes=4)
    assert one + one == one * 2
    assert one * 3 == Work(bf16_flops=3, fp32_flops=6, gathered_bytes=9, permuted_bytes=12)
    assert (one.flops, one.sent_bytes) == (3, 7)
