"""Prepares a checkpoint for a bundle: the shards that ranks map, in files of their own.

Never compiles, and loads nothing onto ranks. The directory appears whole or not at all.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from wanc.bundle.config import VariantConfig
from wanc.bundle.store import open_bundle
from wanc.errors import RequestError, RunError, WeightsError
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.progress import Progress
from wanc.run.load import fit_checkpoint, open_checkpoint, select_variant
from wanc.weights.checkpoint import Component
from wanc.weights.needs import Need, schedule_needs
from wanc.weights.prepare import prepare_shards
from wanc.weights.stored import ReadCount


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRecord:
    """What was prepared, and what it took."""

    variant: str
    written_bytes: int
    """Of the shards and their indices."""
    read: ReadCount


def prepare_weights(
    bundle: Path,
    checkpoint: Path,
    output: Path,
    *,
    shape: str | None,
    topology: str | None,
    precision: str | None,
    progress: Progress,
) -> PreparedRecord:
    """Write a checkpoint for a variant's ranks; raises WancError and then leaves nothing."""
    output = output.resolve()
    if output.exists():
        raise RequestError(f"{output} is there already; give the name of a new directory")
    selected = select_variant(
        open_bundle(bundle), checkpoint, shape=shape, topology=topology, precision=precision
    )
    config = fit_checkpoint(selected, checkpoint)
    components = open_checkpoint(config, checkpoint)
    if any(stored.cut for each in components.values() for stored in each.tensors.values()):
        raise WeightsError(f"{checkpoint} is prepared itself; give the checkpoint it was made of")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
            written = Path(scratch) / output.name
            _copy_configs(checkpoint, written, components)
            written_bytes = _write_shards(config, components, written, progress)
            written.rename(output)
    except OSError as error:
        raise RunError(f"cannot write {output}: {error.strerror or error}") from error
    return PreparedRecord(
        variant=str(config.variant),
        written_bytes=written_bytes,
        read=sum((component.read_count for component in components.values()), ReadCount()),
    )


def _copy_configs(checkpoint: Path, written: Path, components: Iterable[str]) -> None:
    """All that describes the model, and the tokenizer."""
    folders = (checkpoint / name for name in ("tokenizer", "scheduler"))
    files = [
        checkpoint / "model_index.json",
        *(checkpoint / name / "config.json" for name in components),
        *(file for folder in folders for file in folder.glob("*") if file.is_file()),
    ]
    for file in files:
        copy = written / file.relative_to(checkpoint)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _write_shards(
    config: VariantConfig, components: dict[str, Component], written: Path, progress: Progress
) -> int:
    programs = {record.program.name: record.program for record in config.programs}
    needs = schedule_needs(config.schedule, programs)
    text = components["text_encoder"]  # a run takes the table's rows by the first of its names
    table = next(name for name in EMBEDDING_NAMES if name in text.tensors)
    needs.append(Need(component=text.name, names=(table,), shape=text.tensors[table].shape))
    with progress.task("shard", len(needs)) as task:
        return sum(
            prepare_shards(each, [n for n in needs if n.component == name], written / name, task)
            for name, each in components.items()
        )
