"""Host lists keep their lines; `dovetail rank` only moves them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dovetail import codec
from dovetail.cli.main import run
from dovetail.errors import BadInput
from dovetail.network.hostfile import parse_hosts, read_hosts, read_places
from dovetail.network.matrix import ProbeMatrix

LIST = "# my cluster\nnode-a slots=4\nnode-b:29500\n\n10.0.0.3 12400\n"


def test_names_and_reordering() -> None:
    found = parse_hosts(LIST)
    assert found.hosts == ("node-a", "node-b", "10.0.0.3")
    assert found.reordered([2, 0, 1]) == "# my cluster\n10.0.0.3 12400\nnode-a slots=4\n\nnode-b:29500\n"


def test_ports_are_no_part_of_a_name_and_colons_of_ipv6_are() -> None:
    assert parse_hosts("[fe80::1]:29500\nfe80::2\n").hosts == ("[fe80::1]", "fe80::2")


def test_places_are_found_for_every_host(tmp_path: Path) -> None:
    (tmp_path / "truth").write_text("a row1 rack1\nb row1 rack2\nc\n")
    assert read_places(tmp_path / "truth", ["b", "a"]) == [("row1", "rack2"), ("row1", "rack1")]
    for host in ("c", "d"):
        with pytest.raises(BadInput, match=f"does not say where '{host}' stands"):
            read_places(tmp_path / "truth", ["a", host])


@pytest.mark.parametrize(
    ("text", "says"), [("", "names no host"), ("# a\n\n", "names no host"), ("a\nb\na\n", "twice")]
)
def test_bad_lists(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_hosts(text)


def test_missing_file() -> None:
    with pytest.raises(BadInput, match="cannot read the host list"):
        read_hosts("/no/such/file")


def test_matrix_is_symmetric_square_and_saved(tmp_path: Path) -> None:
    found = ProbeMatrix.from_arrays("ab", np.array([[1.0, 2], [3, 1]]), np.array([[9.0, 5], [4, 9]]))
    assert found.latency == ((0, 3), (3, 0))
    assert found.bandwidth == ((0, 4), (4, 0))
    codec.save(found, tmp_path / "m.json")
    assert codec.load(ProbeMatrix, tmp_path / "m.json") == found
    assert found.only("b").latency == ((0,),)
    with pytest.raises(BadInput, match="'c' is not in the matrix"):
        found.only(["c"])
    with pytest.raises(BadInput, match="does not fit"):
        ProbeMatrix(hosts=("a", "b"), latency=((0.0,),))
    with pytest.raises(BadInput, match="twice"):
        ProbeMatrix(hosts=("a", "a"), latency=((0.0, 1.0), (1.0, 0.0)))


def rack_matrix() -> ProbeMatrix:
    home = np.array([0, 1, 0, 1, 0, 1])
    latency = np.where(home[:, None] == home[None], 10e-6, 100e-6)
    return ProbeMatrix.from_arrays([f"h{i}" for i in range(6)], latency)


def test_rank_verb_writes_the_list_and_says_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec.save(rack_matrix(), tmp_path / "probe.json")
    (tmp_path / "hosts.txt").write_text("".join(f"h{i} slots={i + 1}\n" for i in range(6)))
    new, report = tmp_path / "hosts.reordered", tmp_path / "rank.json"
    arguments = ["rank", "--algorithm", "ring", "--size", "1MiB", "--matrix", str(tmp_path / "probe.json")]
    assert run([*arguments, str(tmp_path / "hosts.txt"), "-o", str(new), "--json", str(report)]) == 0
    lines = new.read_text().splitlines()
    assert sorted(lines) == sorted((tmp_path / "hosts.txt").read_text().splitlines())
    parity = [int(line[1]) % 2 for line in lines]
    assert sum(a != b for a, b in zip(parity, parity[1:] + parity[:1], strict=True)) == 2
    data = json.loads(report.read_text())["data"]
    assert data["given"] == pytest.approx(600e-6)
    assert data["cost"] == pytest.approx(240e-6)
    assert "2.50x faster than the given order" in capsys.readouterr().out


def test_rank_verb_prints_a_list_that_can_be_piped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec.save(rack_matrix(), tmp_path / "probe.json")
    (tmp_path / "hosts.txt").write_text("h0\nh1\nh2\n")
    assert run(["rank", "--matrix", str(tmp_path / "probe.json"), str(tmp_path / "hosts.txt")]) == 0
    printed = capsys.readouterr()
    assert sorted(printed.out.split()) == ["h0", "h1", "h2"]
    assert "predicted" in printed.err


def test_rank_verb_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts.txt").write_text("h0\nh9\n")
    assert run(["rank", "--matrix", str(tmp_path / "none.json"), str(tmp_path / "hosts.txt")]) == 2
    assert "dovetail probe" in capsys.readouterr().err
    codec.save(rack_matrix(), tmp_path / "probe.json")
    assert run(["rank", "--matrix", str(tmp_path / "probe.json"), str(tmp_path / "hosts.txt")]) == 2
    assert "'h9' is not in the matrix" in capsys.readouterr().err
    assert run(["rank", "--algorithm", "star", str(tmp_path / "hosts.txt")]) == 2
