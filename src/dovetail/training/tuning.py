"""When to share out the masters' work anew, and how: a pure state machine that is told what each round showed.

All ranks are told the same, so all decide the same without asking each other. Bandwidths say what to try, since the
median over a rank's peers hardly varies between rounds; round times, which do, only say whether it did harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dovetail.plan.patterns import Groups
from dovetail.plan.tuning import ALIKE, Floats, Shares, Sight, blames, even, finetune, quicktune, relative
from dovetail.units import format_seconds

CHANGED = 1.2  # times faster or slower than before: the trigger
LINK_CHANGED = 2.0  # times less than a rank's link carried before, relative to the fast ones: likewise
LINK_BACK = 1.5  # times more, of a rank that masters less than others and is as fast as they are again
SPARED = 0.9  # of an even share: who masters less than that
LEAST = 0.01  # of the fast ones; what is below it is not compared
REFERENCE = 5  # rounds that say how fast training is
RECENT = 3  # rounds that say how fast it is now, and what links carry
STALE = 2  # sights after a change: one of the round before it, and one of the round that paid for it
LOOK = 3  # rounds by which shares are judged
GAIN = 0.97  # uneven shares stay if a round takes less than this share of what it took
HARM = 1.1  # even shares stay if a round takes no more than this times what it took
MOST_FINE = 2  # moves tried after a quick tune


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """New shares from the next round on, or None = as they are; and why, in one line."""

    shares: Shares | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Trial:
    shares: Shares
    sight: Sight
    what: str


class Tuner:
    """Watch; when links or speed have changed try what the bandwidths suggest, then fine moves; keep what helps.

    Bandwidths compare only where all have the same to send, so the way from uneven shares leads over even ones.
    """

    def __init__(self, shares: Shares, *, groups: Groups | None, traffic: Callable[[Shares], Floats]) -> None:
        self.shares = shares
        self._even = even(len(shares))
        self._groups = groups
        self._traffic = traffic
        self._first: list[Sight] = []  # the first rounds since the last decision
        self._links_then: Floats | None = None  # what links were seen to carry in them, once they are complete
        self._seen: list[Sight] = []  # the last ones
        self._shortest = math.inf  # of all rounds since the last decision
        self._stale = STALE  # the first rounds allocate
        self._tried: list[_Trial] = []  # empty: watching; else what was, what was better, and so on
        self._refused = shares  # what bandwidths suggested and did not help
        self._on_trial = ""
        self._fine = 0
        self._offences: dict[int, int] = {}

    def observe(self, sight: Sight) -> Decision | None:
        """What a round showed; a decision where there is one to make."""
        if self._stale:
            self._stale -= 1
            return None
        self._seen.append(sight)
        return self._judge() if self._tried else self._watch()

    def _watch(self) -> Decision | None:
        if len(self._first) < REFERENCE:
            self._first.append(self._seen[-1])
        self._shortest = min(self._shortest, self._seen[-1].seconds)
        del self._seen[:-RECENT]
        if len(self._seen) < RECENT:
            return None
        rates = _together(self._seen).rates
        seen = relative(rates)
        link, (pace, faster) = self._link_changed(seen), self._pace_changed()
        changed = pace or link
        shares = self.shares
        if _same(shares, self._even):
            if seen.min() < ALIKE:
                shares = quicktune(rates, self._groups)
            if not changed and _same(shares, self._refused):
                return None
        elif link or faster:
            shares = self._even
        else:  # slower alone may be anything, and is no reason to forget how fast rounds were
            changed = ""
        if not changed and _same(shares, self.shares):
            return None
        self._fine = 0
        self._offences = {}
        # Not the oldest of the rounds: the change may have come in the middle of it.
        was = _together(self._seen[1:])
        if was.seconds < CHANGED * self._shortest:  # late ones must not make the trial look good
            was = replace(was, seconds=self._shortest)
        self._tried = [_Trial(self.shares, was, "what was")]
        if _same(shares, self.shares):
            return self._settle(f"{changed}, but no rank's link stands out")
        return self._try(shares, changed or "links differ")

    def _pace_changed(self) -> tuple[str, bool]:
        """In words, if rounds take another time than after the last decision; and whether they are faster."""
        if len(self._first) < REFERENCE:
            return "", False
        before = min(sight.seconds for sight in self._first)
        ordered = sorted(sight.seconds for sight in self._seen)
        now = ordered[len(ordered) // 2]
        # Slower if every round is; faster if most are, since some are always late.
        if not ordered[0] > before * CHANGED and not now < before / CHANGED:
            return "", False
        return f"a round took {format_seconds(before)} and takes {format_seconds(now)}", now < before

    def _link_changed(self, seen: Floats) -> str:
        """In words, if a rank's link carries something else than after the last decision."""
        if len(self._first) < REFERENCE:
            return ""
        if self._links_then is None:
            self._links_then = np.maximum(relative(_together(self._first).rates), LEAST)
        then, now = self._links_then, np.maximum(seen, LEAST)
        spared = np.array(self.shares) < SPARED / len(self.shares)
        better = np.where(spared & (now >= ALIKE), now / then / LINK_BACK, 0.0)
        beyond = np.maximum(better, then / now / LINK_CHANGED)
        rank = int(np.argmax(beyond))
        if beyond[rank] < 1:
            return ""
        return f"rank {rank}'s link carried {then[rank]:.0%} of what the fast ones did, and carries {now[rank]:.0%}"

    def _try(self, shares: Shares, why: str) -> Decision:
        level = _same(shares, self._even)
        self._on_trial = "even shares" if level else "quicktune"
        return self._change(
            shares, f"{why}; " + ("tries even shares" if level else f"quicktune tries {_words(shares)}")
        )

    def _judge(self) -> Decision | None:
        if len(self._seen) < LOOK:
            return None
        trial, kept = _Trial(self.shares, _together(self._seen), self._on_trial), self._tried[-1]
        level = _same(trial.shares, self._even)
        helps = trial.sight.seconds <= (HARM if level else GAIN) * kept.sight.seconds
        if level:
            shares = quicktune(trial.sight.rates, self._groups)
            if not _same(shares, self._even) and not _same(shares, kept.shares):
                if helps:
                    self._tried.append(trial)
                return self._try(shares, "links differ in another way")
            # If links differ as before, even shares were worth the look alone.
            helps = helps and _same(shares, self._even)
        if not helps:
            self._refused = trial.shares
            took = f"{trial.what} took {format_seconds(trial.sight.seconds)} a round"
            return self._settle(took)
        self._tried.append(trial)
        self._refused = self._even
        move = self._finer(trial) if not level and self._fine < MOST_FINE else None
        if move is None:
            return self._settle("")
        self._fine += 1
        self._on_trial = "finetune"
        return self._change(move[0], f"finetune {move[1]}")

    def _finer(self, kept: _Trial) -> tuple[Shares, str] | None:
        blame = blames(kept.sight, self._traffic(kept.shares))
        worst = max((n for n in range(len(blame)) if kept.shares[n] > 0), key=lambda n: float(blame[n]))
        found = finetune(kept.shares, blame, self._offences.get(worst, 0))
        if found is None:
            return None
        shares, loser, winner = found
        self._offences[loser] = self._offences.get(loser, 0) + 1
        lost = kept.shares[loser] - shares[loser]
        return (
            shares,
            f"moves {lost:.1%} from rank {loser} (blame {blame[loser]:.2f}) to {winner} ({blame[winner]:.2f})",
        )

    def _settle(self, why: str) -> Decision:
        """Keep the last of what helped, and watch from here."""
        kept = self._tried[-1].shares
        times = ", ".join(f"{t.what} {format_seconds(t.sight.seconds)}" for t in self._tried)
        reason = f"{why}{'; ' if why else ''}keeps {_words(kept)} ({times} a round)"
        self._tried, self._first, self._links_then, self._shortest = [], [], None, math.inf
        if _same(kept, self.shares):
            self._seen = []
            return Decision(shares=None, reason=reason)
        return self._change(kept, reason)

    def _change(self, shares: Shares, reason: str) -> Decision:
        self.shares = shares
        self._seen = []
        self._stale = STALE
        return Decision(shares=shares, reason=reason)


def _together(sights: list[Sight]) -> Sight:
    """Several rounds as one; the shortest tells what a schedule can do, since other things only make rounds late."""
    return Sight(
        seconds=min(s.seconds for s in sights),
        rates=np.median([s.rates for s in sights], axis=0),
        trips=np.median([s.trips for s in sights], axis=0),
    )


def _same(one: Shares, two: Shares) -> bool:
    return max(abs(a - b) for a, b in zip(one, two, strict=True)) < 0.1 / len(one)


def _words(shares: Shares) -> str:
    """Even shares by name, others in percent."""
    if _same(shares, even(len(shares))):
        return "even shares"
    return "shares of " + " ".join(f"{100 * s:.3g}" for s in shares) + " %"
