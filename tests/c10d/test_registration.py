"""A script names the backend and nothing else: torch finds it by itself, or by one import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("dovetail", store=dist.HashStore(), rank=0, world_size=1)
data = torch.arange(3.0)
dist.all_reduce(data)
dist.barrier()
assert data.tolist() == [0.0, 1.0, 2.0]
assert dist.get_backend() == "dovetail"
dist.destroy_process_group()
"""


def run(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1", **env}
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=folder)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that looks as if dovetail had been installed from the present pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "dovetail_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dovetail-entry\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["torch.backends"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    return tmp_path


def test_an_unmodified_script_finds_the_backend(installed: Path) -> None:
    done = run(SCRIPT, installed)
    assert done.returncode == 0, done.stderr


def test_one_import_does_it_where_torch_loads_no_plugins(tmp_path: Path) -> None:
    done = run(f"import dovetail.c10d\n{SCRIPT}", tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


def test_torchs_import_does_not_load_the_engine(installed: Path) -> None:
    done = run(
        "import sys, torch; assert 'DOVETAIL' in torch.distributed.Backend._plugins;"
        "assert not {'dovetail._native', 'dovetail.c10d.backend', 'dovetail.training'} & {*sys.modules}",
        installed,
    )
    assert done.returncode == 0, done.stderr


def test_no_collective_of_torchs_c_side_is_left_to_run_with_the_gil_held() -> None:
    from dovetail.c10d.backend import DovetailGroup

    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
    asked = set(re.findall(r"intrusive_ptr<Work> (\w+)\(", header.read_text()))
    assert len(asked) > 8
    assert not asked - set(vars(DovetailGroup))
