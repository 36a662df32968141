"""How ranks meet: addresses and digests through the store, and a Mismatch before anything is trained."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from dovetail.engine.control import Failed
from dovetail.engine.table import TensorSpec
from dovetail.errors import DovetailError, Mismatch, Unreachable

T = TypeVar("T")
POLL = (0.005, 0.1)  # seconds between looks at the store: at first, and at most


class Store(Protocol):
    """What ranks share before they are connected; torch's stores have this form."""

    def set(self, key: str, value: Any, /) -> Any: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


class Card(msgspec.Struct, frozen=True):
    """What a rank tells the others about itself."""

    address: str  # where it accepts links
    host: str  # its machine, for people
    digests: dict[str, str]  # of everything that must be equal on all ranks
    token: str = ""  # from rank 0: the secret of the links among ranks


class _Broken(msgspec.Struct, frozen=True):
    rank: int
    failure: Failed


class Meeting:
    """One opening of one job in the store; every rank opens the same number of times, so keys never collide."""

    def __init__(self, store: Store, *, rank: int, world: int, name: str, seconds: float) -> None:
        count = store.add(f"dovetail/{name}/opened/{rank}", 1)
        self.rank, self.world, self.seconds = rank, world, seconds
        self._store, self._prefix = store, f"dovetail/{name}/{count}"
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return max(0.0, self._end - time.monotonic())

    def publish(self, key: str, value: Any) -> None:
        self._store.set(f"{self._prefix}/{key}", msgspec.msgpack.encode(value))

    def read(self, key: str, kind: type[T], *, waits_for: str) -> T:
        """The value that some rank publishes; Unreachable names `waits_for` when it does not in time."""
        self._wait([key], lambda _: waits_for)
        return self._get(key, kind)

    def cards(self, mine: Card) -> list[Card]:
        """Everybody's card, after publishing ours; Unreachable names the ranks that are missing."""
        self.publish(f"card/{self.rank}", mine)
        keys = [f"card/{rank}" for rank in range(self.world)]
        self._wait(keys, self._name_missing)
        return [self._get(key, Card) for key in keys]

    def broken(self) -> DovetailError | None:
        """What another rank failed with while it opened, if one did."""
        if not self._has("broken"):
            return None
        found = self._get("broken", _Broken)
        return found.failure.error(f"rank {found.rank} could not start") if found.rank != self.rank else None

    def spoil(self, error: BaseException) -> None:
        """Tell the others that we give up, so that they need not wait for the time to be over."""
        message = str(error) or type(error).__name__
        try:
            self.publish("broken", _Broken(self.rank, Failed(type(error).__name__, message)))
        except Exception:
            return  # the store may be what failed; the error that brought us here is the one to show

    def _name_missing(self, missing: list[str]) -> str:
        ranks = [key.removeprefix("card/") for key in missing]
        seen = self.world - len(ranks)
        word = "rank" if len(ranks) == 1 else "ranks"
        return f"{word} {', '.join(ranks)} (of {self.world}; {seen} came)"

    def _wait(self, keys: list[str], who: Callable[[list[str]], str]) -> None:
        pause, most = POLL
        while not self._store.check([self._full(key) for key in keys]):
            error = self.broken()
            if error is not None:
                raise error
            if self.left == 0:
                missing = [key for key in keys if not self._has(key)]
                raise Unreachable(
                    f"waited {self.seconds:g} s in vain for {who(missing)}; is every rank running, "
                    "and does each of them call this the same number of times?"
                )
            time.sleep(pause)
            pause = min(most, pause * 1.5)

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _has(self, key: str) -> bool:
        return self._store.check([self._full(key)])

    def _get(self, key: str, kind: type[T]) -> T:
        return msgspec.msgpack.decode(self._store.get(self._full(key)), type=kind)


def digest(value: Any) -> str:
    """Equal for equal data."""
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()[:32]


def check_same(
    meeting: Meeting, cards: Sequence[Card], shown: Mapping[str, str], tensors: Sequence[TensorSpec]
) -> None:
    """Raise the same Mismatch on every rank unless all digests are equal; `shown` says in words what differs.

    Lists of tensors are exchanged only when they differ, to name the first parameter that does.
    """
    for what in cards[0].digests:
        other = next((r for r, card in enumerate(cards) if card.digests.get(what) != cards[0].digests[what]), None)
        if other is None:
            continue
        if what == "tensors":
            meeting.publish(f"tensors/{meeting.rank}", list(tensors))
            kind = list[TensorSpec]
            both = [meeting.read(f"tensors/{r}", kind, waits_for=f"the parameters of rank {r}") for r in (0, other)]
            raise Mismatch(f"{difference(*both, ranks=(0, other))}; every rank must train the same model")
        meeting.publish(f"{what}/{meeting.rank}", shown[what])
        ours, theirs = (meeting.read(f"{what}/{r}", str, waits_for=f"{what} of rank {r}") for r in (0, other))
        raise Mismatch(f"ranks do not agree on the {what}: rank 0 has {ours}, rank {other} has {theirs}")


def difference(one: Sequence[TensorSpec], two: Sequence[TensorSpec], *, ranks: tuple[int, int]) -> str:
    """The first parameter that differs, in words."""
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return f"parameter {i} is {_words(a, b)} on rank {ranks[0]} and {_words(b, a)} on rank {ranks[1]}"
    longer, by = (one, ranks[0]) if len(one) > len(two) else (two, ranks[1])
    first = longer[min(len(one), len(two))]
    return f"{first.name!r} is a parameter on rank {by} only ({len(one)} and {len(two)} in all)"


def _words(tensor: TensorSpec, other: TensorSpec) -> str:
    group = f", group {tensor.group}" if tensor.group != other.group else ""
    return f"{tensor.name!r} ({tensor.nbytes} bytes of {tensor.dtype}{group})"
