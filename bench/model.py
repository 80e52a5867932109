"""The model that is measured: the published architecture at a width that is not a toy."""

from dataclasses import replace

from wanc.spec.presets import TINY, WAN22_T2V_A14B

SHAPE = "208x128x9"

MODEL = replace(
    WAN22_T2V_A14B,
    name="bench",
    transformer=replace(
        WAN22_T2V_A14B.transformer,
        heads=8,
        head_width=128,
        ffn_width=2816,
        layers=2,
        text_width=512,
    ),
    text_encoder=replace(
        TINY.text_encoder, width=512, heads=8, head_width=64, ffn_width=1024, layers=4
    ),
    vae=replace(WAN22_T2V_A14B.vae, base_width=32, decoder_base_width=32),
)
"""Width 1024 and 2 layers; VAE of base width 32 with the published depth."""
