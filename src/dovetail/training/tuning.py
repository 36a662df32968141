"""When to share out the masters' work anew, and how: a pure state machine that is told what each round showed.

All ranks are told the same, so all decide the same without asking each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dovetail.plan.patterns import Groups
from dovetail.plan.tuning import Floats, Shares, Sight, blames, even, finetune, quicktune
from dovetail.units import format_seconds

CHANGED = 1.2  # times faster or slower than before: the trigger
REFERENCE = 5  # rounds that say how fast training is
RECENT = 3  # rounds that say how fast it is now
STALE = 2  # sights after a change: one of the round before it, and one of the round that paid for it
LOOK = 3  # rounds by which shares are judged
HOPELESS = 1.3  # times the best: shares that are given up after one round
BETTER = 0.99  # a fine move stays if a round takes less than this share of the best
EVEN_BONUS = 1.03  # even shares are kept if they are at most this much slower than the best
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
    """Watch; on a change of speed try what the bandwidths suggest, then even shares, then fine moves; keep the best."""

    def __init__(self, shares: Shares, *, groups: Groups | None, traffic: Callable[[Shares], Floats]) -> None:
        self.shares = shares
        self._groups = groups
        self._traffic = traffic
        self._seen: list[Sight] = []
        self._before = 0.0  # seconds of a round since the last decision; 0 = not known yet
        self._stale = STALE  # the first rounds allocate
        self._tried: list[_Trial] = []  # empty: watching
        self._waiting: list[tuple[Shares, str]] = []  # shares to be tried
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
        if not self._before:
            if len(self._seen) == REFERENCE:
                self._before = min(s.seconds for s in self._seen)
            return None
        del self._seen[:-RECENT]
        ordered = sorted(s.seconds for s in self._seen)
        # Slower if every round is; faster if most are, since some are always late.
        if not ordered[0] > self._before * CHANGED and not ordered[len(ordered) // 2] < self._before / CHANGED:
            return None
        together = _mean([s for s in self._seen if self._differs(s.seconds)])  # not the rounds before the change
        changed = f"a round took {format_seconds(self._before)} and takes {format_seconds(together.seconds)}"
        quick = quicktune(together.rates, self._groups)
        self._tried = [_Trial(self.shares, together, "what was")]
        self._waiting = []
        for shares, what in ((quick, "quicktune"), (even(len(quick)), "even shares")):
            if not _same(shares, self.shares) and not any(_same(shares, other) for other, _ in self._waiting):
                self._waiting.append((shares, what))
        self._fine = 0
        self._offences = {}
        if not self._waiting:
            return self._settle(f"{changed}, but no rank's link stands out")
        return self._try(f"{changed}; ")

    def _differs(self, seconds: float) -> bool:
        return not self._before / CHANGED <= seconds <= self._before * CHANGED

    def _try(self, why: str) -> Decision:
        shares, self._on_trial = self._waiting.pop(0)
        return self._change(shares, f"{why}{self._on_trial} tries {_words(shares)}")

    def _judge(self) -> Decision | None:
        best = min(trial.sight.seconds for trial in self._tried)
        if len(self._seen) < LOOK and self._seen[-1].seconds <= HOPELESS * best:
            return None
        self._tried.append(_Trial(self.shares, _mean(self._seen), self._on_trial))
        if self._waiting:
            return self._try("")
        kept = self._best()
        if self._fine and kept is not self._tried[-1]:
            return self._settle("the fine move did not help")  # and the next would not either
        move = self._finer(kept) if self._fine < MOST_FINE else None
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

    def _best(self) -> _Trial:
        """The fastest; even shares if they are nearly as fast, and a fine move only if it is clearly faster."""
        best = self._tried[0]
        for trial in self._tried[1:]:
            limit = BETTER if trial.what == "finetune" else 1.0
            if trial.sight.seconds < limit * best.sight.seconds:
                best = trial
        level = even(len(best.shares))
        plain = [t for t in self._tried if _same(t.shares, level)]
        if plain and plain[0].sight.seconds <= EVEN_BONUS * best.sight.seconds:
            return plain[0]
        return best

    def _settle(self, why: str) -> Decision:
        """Keep the best of what was tried, and watch from here."""
        kept = self._best()
        times = ", ".join(f"{t.what} {format_seconds(t.sight.seconds)}" for t in self._tried)
        reason = f"{why}{'; ' if why else ''}keeps {_words(kept.shares)} ({times} a round)"
        self._tried, self._waiting = [], []
        self._before = 0.0
        if _same(kept.shares, self.shares):
            self._seen = []
            return Decision(shares=None, reason=reason)
        return self._change(kept.shares, reason)

    def _change(self, shares: Shares, reason: str) -> Decision:
        self.shares = shares
        self._seen = []
        self._stale = STALE
        return Decision(shares=shares, reason=reason)


def _mean(sights: list[Sight]) -> Sight:
    """Several rounds as one; the shortest tells what a schedule can do, since other things only make rounds late."""
    return Sight(
        seconds=min(s.seconds for s in sights),
        rates=np.mean([s.rates for s in sights], axis=0),
        trips=np.mean([s.trips for s in sights], axis=0),
    )


def _same(one: Shares, two: Shares) -> bool:
    return max(abs(a - b) for a, b in zip(one, two, strict=True)) < 0.1 / len(one)


def _words(shares: Shares) -> str:
    """Even shares by name, others in percent."""
    if _same(shares, even(len(shares))):
        return "even shares"
    return "shares of " + " ".join(f"{100 * s:.3g}" for s in shares) + " %"
