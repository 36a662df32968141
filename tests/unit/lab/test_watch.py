"""Link use from counters."""

from __future__ import annotations

import subprocess
import sys

from dovetail.lab import counters
from dovetail.lab.counters import read_devices
from dovetail.lab.watch import Use, differences, link_spans
from dovetail.timeline import RECEIVE, SEND

DEVICES = """Inter-|   Receive                              |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    0    0    0    0    0     0          0         0    0    0    0    0    0     0       0          0
 host0: 1234   10    0    0    0     0          0         0  567    5    0    0    0     0       0          0
"""


def test_devices_are_read() -> None:
    assert read_devices(DEVICES)["host0"] == (1234, 567)


def test_use_is_what_changed_between_samples_and_only_of_hosts() -> None:
    samples = [
        (1.0, {"host0": (100, 50), "rack0": (7, 7)}),
        (1.5, {"host0": (300, 50), "rack0": (9, 9)}),
        (2.0, {}),
        (2.5, {"host0": (300, 90)}),
    ]
    assert list(differences(samples, {"host0"})) == [Use("host0", 1.0, 1.5, 200, 0), Use("host0", 2.0, 2.5, 0, 40)]


def test_spans_are_as_long_as_the_bytes_need_and_never_longer_than_the_sample() -> None:
    uses = [Use("host0", 1.0, 2.0, 50, 500), Use("hub0", 1.0, 2.0, 50, 50)]
    spans = list(link_spans(uses, {"host0": "worker 0"}, rate=100.0))
    assert [(s.node, s.lane, s.start, s.end, s.nbytes) for s in spans] == [
        ("worker 0", SEND, 1.0, 1.5, 50),
        ("worker 0", RECEIVE, 1.0, 2.0, 500),
    ]


def test_a_reader_that_has_gone_is_no_error() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", counters.__file__]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
