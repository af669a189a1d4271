"""Build the wheel, install it into an empty environment without torch, and score a model there.

`python tools/check_wheel.py` trains a tiny model with the present environment, then checks that the plain install
scores it to the same numbers and that the wheel carries the files of the workbench's page. With the extra `openvino`,
the plain install then scores in bfloat16 what was exported for it, and refuses what was not calibrated for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from trace_journey import write_images

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ("backbone.size=64", "train.steps=4", "train.push_steps=2", "pseudo.count=2", "flow.blocks=2")
TOLERANCE = 1e-4


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; its standard output, or an error with what it said."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build the wheel of the checkout."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("bgad-*.whl")
    return wheel


def missing_page_files(wheel: Path) -> list[str]:
    """Files of the page that the checkout has and the wheel has not."""
    web = ROOT / "bgad/service/web"
    wanted = {path.relative_to(ROOT).as_posix() for path in web.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        return sorted(wanted - set(archive.namelist()))


def scores(python: Path | str, model: Path, images: list[Path], cwd: Path, *options: str) -> list[float]:
    """Score images with the bgad of an environment."""
    text = run(python, "-m", "bgad", "predict", model, *images, "--threads", "1", *options, cwd=cwd)
    return [json.loads(line)["score"] for line in text.splitlines()]


def check_precision(plain: Path, model: Path, images: list[Path], work: Path) -> str:
    """Check scoring in bfloat16 with the plain install; return what was found wrong, or nothing."""
    ask = "from bgad.inference.openvino_engine import capabilities; print(*capabilities('CPU'))"
    if "BF16" not in run(plain, "-c", ask, cwd=work).split():
        print("bfloat16: skipped, this CPU does not compute in it")
        return ""
    command = [str(plain), "-m", "bgad", "predict", str(model), str(images[0]), "--precision", "bf16"]
    refused = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if refused.returncode != 2 or "is not calibrated for bf16" not in refused.stderr:
        return f"bfloat16 without a calibration is not refused: {refused.stderr[-300:]}"
    run(sys.executable, "-m", "bgad", "export", model, "--precision", "bf16", cwd=ROOT)
    here = scores(sys.executable, model, images, ROOT, "--precision", "bf16")
    there = scores(plain, model, images, work, "--precision", "bf16")
    if max(abs(a - b) for a, b in zip(here, there, strict=True)) > TOLERANCE * (max(here) - min(here)):
        return "the plain install has other scores in bfloat16"
    print(f"{len(there)} images scored in bfloat16 without torch, as with it")
    return ""


def main() -> int:
    """Run the check; 0 when the wheel is sound."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        wheel = build(work)
        if missing := missing_page_files(wheel):
            print(f"the wheel lacks {len(missing)} files of the page, the first: {missing[0]}")
            return 1
        data, model = work / "plate", work / "plate.bgad"
        write_images(data)
        settings = [word for key in RECIPE for word in ("--set", key)]
        run(sys.executable, "-m", "bgad", "train", data, "--out", model, "--known", "2", *settings, cwd=ROOT)
        venv.create(work / "plain", with_pip=True)
        plain = work / "plain/bin/python"
        constraints = ("--constraint", ROOT / "constraints.txt")
        install = (plain, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints)
        run(*install, wheel, cwd=work)
        without = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
        run(plain, "-c", without, cwd=work)
        images = sorted((data / "test").rglob("*.png"))
        here, there = scores(sys.executable, model, images, ROOT), scores(plain, model, images, work)
        run(*install, f"bgad[openvino] @ {wheel.as_uri()}", cwd=work)
        problem = check_precision(plain, model, images, work)
    apart = max(abs(a - b) for a, b in zip(here, there, strict=True))
    spread = max(here) - min(here)
    print(
        f"{wheel.name}: {len(there)} images scored without torch, within {apart / spread:.1e} of the spread of scores"
    )
    if problem:
        print(problem)
    return int(bool(problem) or apart > TOLERANCE * spread)


if __name__ == "__main__":
    sys.exit(main())
