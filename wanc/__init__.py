"""wanc: an ahead-of-time compiler and artifact bundles for Wan2.2 video diffusion.

Vocabulary, used with one meaning in code, command line, log and docs:

task        t2v | i2v | ti2v: from text, from an image, from text with an image or none
shape       WxHxF in pixels and video frames, as ``832x480x81``
geometry    what follows from a shape: latent grid, tokens
topology    ``tp4-cp8-cfg2``: the mesh axes tp, cp, cfg and their degrees
placement   how ranks lie on the fabric
rank        one device's place in the topology
process     an OS process that hosts one or more ranks
variant     one (task, shape, topology, placement, precision, target) of a bundle
program     one compiled graph of a variant
schedule    the ordered calls of a variant's programs, with their bindings
feed        a program input that the host supplies
branch      a guidance branch: 0 conditioned on the prompt, 1 on the negative prompt
expert      high_noise | low_noise
frame       a video frame; a latent frame is said in full
latent      before VAE decode; pixels after
condition   what experts see of images beside the noise: a mask and latents
given       of a token or a latent frame: it is an image's, and not denoised
tile        a VAE tile
digest      sha256 of bytes

Shape letters, as suffixes of tensor names (``x_BLD``): B batch, C channels, F latent frames,
H W latent rows and columns, L tokens, D model width, N heads, K head width, T text tokens.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wanc.api import Pipeline as Pipeline
    from wanc.api import Video as Video
    from wanc.api import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The Python API, imported where it is used."""
    if name in ("Pipeline", "Video", "load"):
        from wanc import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
