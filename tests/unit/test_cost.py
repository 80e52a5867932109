"""Predicted times against every published run, and what they are made of.

`pytest -s` on the table prints it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.planned import A14B, TI2V, planned
from wanc.plan.cost import LAUNCH_SECONDS, Cost, Prediction

BOUND = 0.20
"""Largest error of a prediction. Four runs of two models calibrate four constants; efficiency in
truth falls with shorter chunks and more ranks, and a public total says not how it is made up."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A public run on trn2 of whole-model graphs with attention kernels, at the default steps."""

    model: str
    shape: str
    topology: str
    layers: int
    seconds: float
    stage: str = "all"


RUNS = [
    Run(model=A14B, shape="1280x720x81", topology="tp8-cp4-cfg2", layers=40, seconds=157.8),
    Run(model=TI2V, shape="1280x704x121", topology="tp4-cp8-cfg2", layers=30, seconds=23.6),
    Run(
        model=TI2V,
        shape="1280x704x121",
        topology="tp4-cp8-cfg2",
        layers=30,
        seconds=16.8,
        stage="denoise",
    ),
    Run(
        model=TI2V,
        shape="1280x704x121",
        topology="tp4-cp8-cfg2",
        layers=30,
        seconds=4.3,
        stage="decode",
    ),
    Run(model=TI2V, shape="1280x704x121", topology="tp4-cp4", layers=30, seconds=68.4),
    Run(model=TI2V, shape="832x480x81", topology="tp4-cp4", layers=30, seconds=15.6),
]


def cost_of(*args, **kwargs) -> Cost:
    cost = planned(*args, **kwargs).cost
    assert cost is not None
    return cost


def predicted(run: Run) -> float:
    cost = cost_of(
        run.shape, run.topology, model=run.model, options={"blocks_per_program": run.layers}
    )
    kernels = cost.kernels
    return {
        "all": kernels.seconds,
        "denoise": kernels.denoise.seconds,
        "decode": kernels.decode.seconds,
    }[run.stage]


@pytest.mark.parametrize(
    "run", RUNS, ids=lambda run: f"{run.model} {run.shape} {run.topology} {run.stage}"
)
def test_published_run(run):
    seconds = predicted(run)
    error = seconds / run.seconds - 1
    print(
        f"\n{run.model:16} {run.shape:12} {run.topology:12} {run.stage:8}"
        f"{run.seconds:7.1f} s published{seconds:7.1f} s predicted{error:+8.1%}"
    )
    assert abs(error) < BOUND


def test_the_docs_show_these_predictions():
    shown = re.findall(
        r"^\| (\S+ \S+) \| (\S+) \| (\S+) \| \d+ \| ([\d.]+) s \| ([\d.]+) s \|$",
        (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    names = {A14B: "T2V A14B", TI2V: "TI2V 5B"}
    assert shown == [
        (names[run.model], run.shape, run.topology, str(run.seconds), f"{predicted(run):.1f}")
        for run in RUNS
        if run.stage == "all"
    ]


def shares(time) -> float:
    return sum(
        time.share(limit)
        for limit in (
            "compute",
            "memory",
            "links",
            "launches",
        )
    )


def test_whole_is_the_sum_of_its_stages_and_a_stage_of_its_limits():
    cost = cost_of()
    for one in (cost.kernels, cost.stablehlo):
        assert isinstance(one, Prediction)
        stages = (one.text, one.denoise, one.decode)
        assert one.seconds == pytest.approx(sum(s.seconds for s in stages) + one.host_seconds)
        assert one.denoise.seconds == pytest.approx(cost.steps * one.step.seconds)
        for time in (*stages, one.step):
            assert shares(time) == pytest.approx(time.seconds)
            assert time.share(time.limited_by) == max(
                time.compute_seconds,
                time.memory_seconds,
                time.links_seconds,
                time.launches_seconds,
            )


@pytest.mark.parametrize("shape", ["832x480x81", "1280x720x81"])
@pytest.mark.parametrize("topology", ["tp4-cp8-cfg2", "tp8-cp4"])
def test_plain_attention_is_slower_for_its_scores(shape, topology):
    cost = cost_of(shape, topology)
    assert cost.kernels.step.limited_by == "compute"
    assert cost.stablehlo.step.limited_by == "memory"
    assert cost.stablehlo.seconds > 1.5 * cost.kernels.seconds
    assert cost.stablehlo.decode.seconds == pytest.approx(cost.kernels.decode.seconds, rel=0.01)


def test_a_small_video_is_all_launches():
    cost = cost_of("208x128x5", "tp2-cp2-cfg2", model="tiny")
    assert cost.kernels.step.limited_by == "launches"
    assert cost.kernels.step.launches_seconds == pytest.approx(3 * LAUNCH_SECONDS)


def test_more_blocks_in_a_program_are_fewer_launches():
    one, ten = (cost_of(options={"blocks_per_program": n}).kernels.step for n in (1, 10))
    assert one.seconds - ten.seconds == pytest.approx(36 * LAUNCH_SECONDS)


def test_half_the_ranks_take_about_twice_as_long():
    two, one = (cost_of("832x480x81", t).kernels.step.seconds for t in ("tp4-cp8", "tp4-cp8-cfg2"))
    assert 1.9 < two / one < 2.1


def test_fp32_is_slower_than_bf16():
    wide, narrow = (
        cost_of("832x480x81", model="tiny", topology="tp1", precision=precision).kernels
        for precision in ("fp32", "bf16")
    )
    assert wide.step.compute_seconds > 1.5 * narrow.step.compute_seconds
    assert wide.decode == narrow.decode


def test_steps_are_the_model_s():
    assert cost_of().steps == 40
    assert cost_of("1280x704x121", model=TI2V).steps == 50


def test_narrow_links_of_trn3_cost_time():
    """256 GB/s inside a sled, a fifth of trn2's; the chip is as fast and its HBM faster."""
    trn2, trn3 = (cost_of("832x480x81", target=target) for target in ("trn2", "trn3"))
    assert trn3.kernels.step.links_seconds > 4 * trn2.kernels.step.links_seconds
    assert trn3.stablehlo.step.memory_seconds < trn2.stablehlo.step.memory_seconds


def test_nothing_is_predicted_for_any_cpu():
    plan = planned("208x128x5", "tp1", model="tiny", target="cpu")
    assert plan.cost is None
    assert plan.hbm_bytes is None
    assert plan.stage_work("step").total.flops > 0
