"""What a bundle's programs serve, counted beside a compile for each use."""

from dataclasses import replace

from wanc.bundle.sharing import sharing_of, uses_by_program


def test_uses_by_hand(made):
    """Eight ranks, two experts, two groups of one layer; one tile on one rank."""
    config = made(topology="tp2-cp2-cfg2", blocks_per_program=1).config
    assert uses_by_program(config) == {
        "text_encoder": 8,
        "dit_context": 8 * 2 * 2,
        "dit_embed": 8 * 2,
        "dit_blocks": 8 * 2 * 2,
        "dit_head": 8 * 2,
        "vae_decode_first": 1,
        "vae_decode_rest": 1,
    }


def test_a_branch_after_the_other_is_one_use(made):
    """cfg1 calls the same program twice on the same rank: nothing more to compile."""
    one, two = (made(topology=topology).config for topology in ("cp2", "cp2-cfg2"))
    assert uses_by_program(one)["dit_blocks"] * 2 == uses_by_program(two)["dit_blocks"]


def test_tiles_are_on_so_many_ranks(made):
    config = made("432x240x5", "tp1-cp2").config
    assert len(config.tiles.tiles) == 2
    assert uses_by_program(config)["vae_decode_first"] == 2


def test_blobs_are_counted_once(made):
    config = made().config
    alone, twice = sharing_of([config]), sharing_of([config, config])
    assert alone.programs == twice.programs == len(config.programs)
    assert alone.blobs == twice.blobs == 2 * len(config.programs)
    assert alone.bytes == twice.bytes
    assert (twice.uses, twice.uses_bytes) == (2 * alone.uses, 2 * alone.uses_bytes)


def test_each_target_compiles_its_own(made):
    config = made().config
    other = replace(config, variant=replace(config.variant, target="trn2"))
    both = sharing_of([config, other])
    assert both.programs == 2 * len(config.programs)
    assert both.uses == 2 * sharing_of([config]).uses


def test_what_was_only_lowered_has_its_artifacts(made):
    config = made().config
    programs = tuple(replace(record, executable=None) for record in config.programs)
    lowered = sharing_of([replace(config, programs=programs)])
    assert lowered.blobs == lowered.programs == len(programs)
