"""The project as pip installs it: a wheel works elsewhere, and no name of ours hides another's."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend of pyproject.toml, from a copy: setuptools leaves a build folder."""
    import shutil

    source = tmp_path_factory.mktemp("source") / "wanc"
    kept = ("wanc", "kernels", "pyproject.toml", "README.md", "LICENSE")
    for name in kept:
        here = ROOT / name
        if here.is_dir():
            shutil.copytree(here, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(here, source / name)
    line = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run([sys.executable, *line], cwd=source, check=True, capture_output=True)
    (built,) = (source / "dist").glob("wanc-*.whl")
    return built


def test_a_wheel_works_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    """In a new environment whose only wanc is the wheel; dependencies are this environment's."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    assert len(list((site / "wanc" / "checkpoints" / "toy-t2v").glob("*/*.safetensors"))) == 4
    dependencies = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(dependencies + "\n")
    plan = ["-m", "wanc", "plan", "--model", "tiny", "--shape", "208x128x5"]
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", *plan],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    where = "import wanc, wanc.kernels; print(wanc.__file__, wanc.kernels.__file__)"
    found = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(path.startswith(str(site)) for path in found.stdout.split())
    templates = [*(ROOT / "wanc" / "page").glob("*.j2"), ROOT / "wanc" / "page" / "page.css"]
    assert len(templates) > 2
    for template in templates:
        assert (site / "wanc" / "page" / template.name).is_file(), "pages need it"


def test_our_kernels_folder_does_not_hide_hugging_face_s(tmp_path: Path) -> None:
    """transformers probes for a package named kernels; ours is wanc.kernels only."""
    probe = (
        "from transformers import UMT5EncoderModel; import importlib.util, wanc.kernels;"
        "print(UMT5EncoderModel.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "UMT5EncoderModel", done.stderr
