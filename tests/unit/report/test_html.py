"""The page: self-contained, complete, and not to be broken by what names contain."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from report_cases import two_workers

from dovetail.report import html
from dovetail.timeline import SEND, Span, Timeline


class Page(HTMLParser):
    """Collects tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts[-1] == "":
            self.scripts[-1] = data
        self.words.append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def spans_of(timeline: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    return sorted(
        (row["node"], track["lane"][i], track["start"][i], track["end"][i])
        for row in timeline["rows"]
        for track in row["tracks"]
        for i in range(len(track["start"]))
    )


def test_the_page_fetches_nothing() -> None:
    text = html.render({"ddp": two_workers(), "hub": two_workers()})
    fetched = [a for _, attributes in Page(text).tags for a in attributes if a in ("src", "href", "srcset", "action")]
    assert not fetched
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp|WebSocket|\bimport\(", text)
    assert "{{" not in text.split('id="data"')[0]


def test_every_span_is_in_the_page() -> None:
    run = two_workers()
    (drawn,) = Page(html.render({"hub": run})).data["timelines"]
    lanes = Page(html.render({"hub": run})).data["lanes"]
    expected = [
        (s.node, lanes.index(s.lane), round((s.start - 5) * 1e6, 1), round((s.end - 5) * 1e6, 1)) for s in run.spans
    ]
    assert spans_of(drawn) == sorted(expected)
    assert drawn["bounds"]["worker 1"] == [0, 1e6, 2e6]


def test_a_crowd_of_transfers_stays_on_a_few_tracks_and_in_order() -> None:
    crowd = tuple(
        Span(node="worker 0", lane=SEND, name=f"p{n}", start=5 + n / 100, end=6, iteration=0) for n in range(50)
    )
    (drawn,) = Page(html.render({"x": replace(two_workers(), spans=crowd)})).data["timelines"]
    (row,) = drawn["rows"]
    assert len(row["tracks"]) <= 8
    assert sum(len(t["start"]) for t in row["tracks"]) == 50
    assert all(t["start"] == sorted(t["start"]) for t in row["tracks"])


def test_names_cannot_break_out_of_the_page() -> None:
    evil = '</script><img src=x onerror=alert(1)><!-- {{title}} "'
    run = two_workers(notes=(evil,))
    spans = (replace(run.spans[0], name=evil, peer=evil), *run.spans[1:])
    page = Page(html.render({evil: replace(run, spans=spans, policy=evil)}, title=evil))
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert evil in page.data["strings"]
    assert page.data["timelines"][0]["notes"] == [evil]
    assert len(page.scripts) == 2


def test_the_table_and_the_events_are_there_without_a_script() -> None:
    page = Page(html.render({"ddp": two_workers(), "hub": two_workers(notes=("slices grew",))}))
    words = {word.strip() for word in page.words}
    assert {"ddp", "hub", "1.00x", "Overlap α", "Exposed", "Straggler", "3.9 KiB"} <= words


def test_an_empty_timeline_makes_a_page() -> None:
    empty = Timeline(source="engine", policy="p3", spans=(), boundaries={})
    assert Page(html.render({"empty": empty})).data["timelines"][0]["rows"] == []
