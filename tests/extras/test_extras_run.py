"""Every example under examples/extras runs as its docstring says; the loop it stands in gives DDP's weights."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import ranks

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extras"
NEEDS = {"lightning_fit": "lightning", "accelerate_loop": "accelerate", "hf_trainer": "accelerate", "ray_train": "ray"}
LOSSES = re.compile(r"loss (\d+\.\d+) -> (\d+\.\d+)")


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make test-extras` installs it")


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_every_example_has_its_package_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_the_example_runs_as_it_says_and_learns(name: str, tmp_path: Path) -> None:
    need(NEEDS[name])
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    commands = re.findall(r"^Run: (\S.*)$", text, re.MULTILINE)
    assert len(commands) == 1
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", commands[0]],
        cwd=tmp_path,
        env={**os.environ, "PATH": tools, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found = LOSSES.search(done.stdout)
    assert found, done.stdout[-4000:]
    assert float(found[2]) < 0.8 * float(found[1])


def weights(module: Any) -> list[Any]:
    return [value.detach().clone() for value in module.state_dict().values()]


def with_lightning(rank: int, size: int) -> tuple[list[Any], list[Any]]:
    from lightning.pytorch.strategies import DDPStrategy

    example = load("lightning_fit")
    ours = example.main()
    return weights(ours), weights(example.main(DDPStrategy(process_group_backend="gloo")))


def with_accelerate(rank: int, size: int) -> tuple[list[Any], list[Any]]:
    example = load("accelerate_loop")
    return weights(example.main()), weights(example.main(ddp=True))


def with_trainer(rank: int, size: int) -> tuple[list[Any], list[Any]]:
    from transformers import Trainer

    example = load("hf_trainer")
    (ours, mine), (theirs, stock) = example.main(), example.main(Trainer)
    assert ours == theirs
    assert len(ours) == 20
    return list(mine.values()), list(stock.values())


@pytest.mark.parametrize(
    ("body", "package"),
    [(with_lightning, "lightning"), (with_accelerate, "accelerate"), (with_trainer, "accelerate")],
    ids=["lightning", "accelerate", "trainer"],
)
def test_two_ranks_end_with_ddps_weights_to_the_bit(body: Any, package: str) -> None:
    """Accumulation and clipping included."""
    need(package)
    with ranks(2, body) as group:
        for ours, theirs in group.results(240):
            assert len(ours) == len(theirs) > 2
            for one, other in zip(ours, theirs, strict=True):
                assert one.equal(other)
