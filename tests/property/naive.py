"""A queue in plain Python, one dict a message: slow, and meant to be obviously right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

ACTIVE = ("waiting", "leased", "delayed", "backlog")
Where = tuple[int, int]


@dataclass
class Place:
    """Where a message stands for one subscription."""

    where: str
    rank: int = 0
    until: int = 0
    attempts: int = 0
    failed: bool = False
    """Delayed by a failure: where keys keep their order it holds its key."""
    before: bool = False
    """The subscription starts behind this message."""


@dataclass
class Message:
    at: Where
    published: int
    key: str | None = None
    priority: int = 32_768
    due: int | None = None
    expires: int | None = None
    id: str | None = None
    payload: bytes = b""
    version: int = 1
    gone: bool = False
    dead: bool = False
    """A dead letter of no subscription: the message did not fit."""
    orphaned: bool = False
    """The same, of a subscription that was cut off: others may still have to do with it."""
    immortal: bool = False
    removed: bool = False
    why: str = ""
    """Why the message was removed, where it was not by being settled."""
    heir: Message | None = None
    watched: bool = False
    reported: str = ""
    """The fate that its producer got last."""
    places: dict[str, Place] = field(default_factory=dict)

    def weight(self) -> int:
        """Return the bytes that count against the buffer of a consumer."""
        return len(self.payload) + len((self.id or "").encode()) + len((self.key or "").encode())

    def is_dead_somewhere(self) -> bool:
        return self.dead or self.orphaned or any(place.where == "dead" for place in self.places.values())


@dataclass
class Subscription:
    name: str
    durable: bool
    key_order: bool
    attempts: int


@dataclass
class Lease:
    subscription: str
    consumer: str
    at: list[Where]
    deadline: int


class Queue:
    """One topic."""

    def __init__(self, order: str, *, stream: bool, dead_max: int) -> None:
        self.order, self.stream, self.dead_max = order, stream, dead_max
        self.messages: dict[Where, Message] = {}
        self.ends: dict[int, int] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.leases: dict[int, Lease] = {}

    # Counting.

    def durable(self) -> list[str]:
        return [name for name, each in self.subscriptions.items() if each.durable]

    def counts_against_the_bounds(self, message: Message) -> bool:
        if message.gone or message.dead:
            return False
        if self.stream or not self.durable():
            return not message.removed
        return any(message.places[name].where in ACTIVE for name in self.durable())

    def counted(self) -> list[Message]:
        return [message for message in self.messages.values() if self.counts_against_the_bounds(message)]

    def is_open(self, message: Message) -> bool:
        """Return whether some durable subscription, or the first one to come, has still to do with a message."""
        places = [message.places[name] for name in self.durable()]
        if all(place.before for place in places):
            return self.counts_against_the_bounds(message)
        return any(place.where in ACTIVE for place in places)

    def fate(self, message: Message, now: int) -> str:
        while message.heir is not None:
            message = message.heir
        if not self.is_open(message):
            return "dead" if message.is_dead_somewhere() else message.why or "settled"
        for place in message.places.values():
            anew = place.before or message.version > 1 or message.why == "expired"
            done = place.where == "settled" and not anew
            if done or place.where in ("leased", "dead") or place.attempts:
                return "delivered"
        return "scheduled" if message.due is not None and message.due > now else "waiting"

    def dead(self) -> int:
        every = self.messages.values()
        return sum(m.dead or m.orphaned for m in every) + sum(
            p.where == "dead" for m in every for p in m.places.values()
        )

    def stats(self, name: str, now: int) -> dict[str, int]:
        places = [m.places[name] for m in self.messages.values() if name in m.places]
        ready = sum(self.is_ready(place, now) for place in places)
        active = sum(place.where in ACTIVE for place in places)
        pending = sum(place.where == "backlog" for place in places)
        leased = sum(place.where == "leased" for place in places)
        dead = sum(place.where == "dead" for place in places)
        return {
            "ready": ready,
            "leased": leased,
            "scheduled": active - ready - leased - pending,
            "dead": dead,
            "lag": active,
        }

    def is_ready(self, place: Place, now: int) -> bool:
        if place.where == "delayed":
            return place.until <= now
        return place.where == "waiting" and (self.order != "timeline" or place.rank <= now)

    def ids(self) -> set[str]:
        return {message.id for message in self.messages.values() if message.id is not None and not message.gone}

    # Messages come.

    def publish(self, message: Message, now: int) -> None:
        partition, offset = message.at
        assert offset == self.ends.get(partition, 0), "offsets are dense"
        self.ends[partition] = offset + 1
        self.messages[message.at] = message
        if message.dead:
            message.places = {name: Place("settled") for name in self.subscriptions}
            return
        for name in self.subscriptions:
            message.places[name] = self.new_place(message, now)

    def new_place(self, message: Message, now: int) -> Place:
        if self.order == "fifo":
            rank = message.at[1]
        elif self.order == "priority":
            rank = message.priority
        else:
            return Place("waiting", message.published if message.due is None else message.due)
        if message.due is not None and message.due > now:
            return Place("delayed", rank, message.due)
        return Place("waiting", rank)

    def replace(self, old: Message, new: Message, now: int) -> None:
        """Amend: put the new message in the place of the old one, without its attempts."""
        before = dict(old.places)
        self.publish(new, now)
        for name, place in before.items():
            if place.where in ("settled", "dead"):
                new.places[name] = Place("settled")
            elif self.order == "fifo":
                new.places[name].rank = place.rank if place.where != "backlog" else old.at[1]
        self.remove([old])
        old.heir = new

    def subscribe(self, new: Subscription, starts: dict[int, int], late: list[int]) -> None:
        """Subscribe; in `late` partitions, the messages that are there already are admitted block by block."""
        waiting = {message.at for message in self.counted()}
        first = new.durable and not self.durable() and not self.stream
        self.subscriptions[new.name] = new
        for message in self.messages.values():
            partition, offset = message.at
            before = offset < starts.get(partition, 0)
            if message.at not in waiting or before:
                message.places[new.name] = Place("settled", before=before)
                if message.at in waiting and first:
                    message.why = "dropped"
            elif partition not in late:
                assert self.order == "fifo"
                message.places[new.name] = Place("waiting", offset)
            else:
                message.places[new.name] = Place("backlog")
        self.settle_up()

    def admit(self, name: str, partition: int, stop: int, offsets: Iterable[int], now: int) -> None:
        """Admit a block, up to `stop`, of the messages that were there before the subscription."""
        for offset in offsets:
            message = self.messages[partition, offset]
            assert message.places[name].where == "backlog"
            message.places[name] = self.new_place(message, now)
        for (number, offset), message in self.messages.items():
            if number == partition and offset < stop and message.places[name].where == "backlog":
                assert message.gone, "only what is gone is left out"
                assert not self.subscriptions[name].durable, "which a durable subscription would have prevented"
                message.places[name] = Place("settled")

    def unsubscribe(self, name: str, *, keep_dead: bool = False) -> None:
        last = self.durable() == [name]
        gone = self.subscriptions.pop(name)
        for message in self.messages.values():
            place = message.places.pop(name, None)
            if gone.durable and place is not None:
                others = [message.places[other] for other in self.durable()]
                if place.where in ACTIVE and others and all(other.before for other in others) and not self.stream:
                    message.why = "dropped"
                if place.where == "dead":
                    message.why = "dead"
                    message.orphaned |= keep_dead
            if last and place is not None and place.where == "dead" and not self.stream:
                message.gone, message.removed = not message.orphaned, True
        self.leases = {token: lease for token, lease in self.leases.items() if lease.subscription != name}
        if gone.durable:
            self.settle_up()

    # Messages go out and come back.

    def available(self, name: str, partition: int, now: int) -> list[Message]:
        """Return the messages that may be handed over, in order."""
        busy = set()
        mine = [m for m in self.messages.values() if m.at[0] == partition and name in m.places]
        if self.subscriptions[name].key_order:
            for message in mine:
                place = message.places[name]
                if place.where == "leased" or (place.where == "delayed" and place.failed and place.until > now):
                    busy.add(message.key)
        busy.discard(None)
        ready = [m for m in mine if self.is_ready(m.places[name], now) and m.key not in busy]
        return sorted(ready, key=lambda m: (m.places[name].rank, m.at[1]))

    def lease(self, token: int, lease: Lease) -> None:
        for at in lease.at:
            place = self.messages[at].places[lease.subscription]
            assert place.where in ("waiting", "delayed"), f"{at} is {place.where}: handed out twice?"
            place.where, place.failed = "leased", False
        self.leases[token] = lease

    def take_out(self, token: int, at: Iterable[Where]) -> list[Message]:
        lease = self.leases[token]
        going = set(at)
        lease.at = [each for each in lease.at if each not in going]
        if not lease.at:
            del self.leases[token]
        return [self.messages[each] for each in sorted(going)]

    def ack(self, token: int, at: Iterable[Where]) -> None:
        name = self.leases[token].subscription
        for message in self.take_out(token, at):
            message.places[name] = Place("settled")
        self.settle_up()

    def advance(self, name: str, at: Iterable[Where]) -> None:
        """Settle these without a lease, as a reader of the log."""
        for each in at:
            place = self.messages[each].places[name]
            assert place.where in ACTIVE
            assert place.where != "leased"
            self.messages[each].places[name] = Place("settled")
        self.settle_up()

    def release(self, token: int, at: Iterable[Where]) -> None:
        name = self.leases[token].subscription
        for message in self.take_out(token, at):
            message.places[name].where = "waiting"

    def fail(self, token: int, at: Iterable[Where], delay_of: dict[int, int] | int, now: int) -> None:
        """Count one more attempt each; `delay_of` gives the delay by attempt, or is one for all."""
        each = self.subscriptions[self.leases[token].subscription]
        failing = self.take_out(token, at)
        done = [m for m in failing if m.places[each.name].attempts + 1 >= each.attempts]
        if each.durable and self.dead() + len(done) > self.dead_max:
            done = []
        for message in failing:
            place = message.places[each.name]
            place.attempts += 1
            if message in done:
                self.bury(message, each.name)
                continue
            delay = delay_of if isinstance(delay_of, int) else delay_of[place.attempts]
            place.where, place.until, place.failed = "delayed", now + delay, True
        self.settle_up()

    def bury(self, message: Message, name: str) -> None:
        place = message.places[name]
        place.where = "dead" if self.subscriptions[name].durable else "settled"

    def redrive(self, message: Message, name: str, now: int) -> None:
        place = message.places[name]
        assert place.where == "dead"
        message.immortal = True
        message.removed &= self.stream
        place.where, place.attempts, place.failed = "waiting", 0, False
        if self.order != "timeline" and message.due is not None and message.due > now:
            place.where, place.until = "delayed", message.due

    # Messages go.

    def remove(self, going: Iterable[Message], why: str = "") -> None:
        """Remove messages for every subscription; a dead letter stays one."""
        for message in going:
            if self.is_open(message):
                message.why = why
            message.removed = True
            for name, place in message.places.items():
                if place.where != "dead":
                    message.places[name] = Place("settled", before=place.before)
                for token in [token for token, lease in self.leases.items() if lease.subscription == name]:
                    if message.at in self.leases[token].at and place.where != "dead":
                        self.take_out(token, [message.at])
            if not message.is_dead_somewhere():
                message.gone = True
        self.settle_up()

    def settle_up(self) -> None:
        """Remove each message that every durable subscription has settled, unless it is a dead letter of one."""
        if self.stream or not self.durable():
            return
        for message in self.messages.values():
            if self.counts_against_the_bounds(message):
                continue
            message.gone |= not message.is_dead_somewhere()
            message.removed |= message.orphaned  # also when the subscriptions that had settled it are deleted

    def held_by(self, name: str, consumer: str) -> list[Message]:
        mine = [lease for lease in self.leases.values() if (lease.subscription, lease.consumer) == (name, consumer)]
        return [self.messages[at] for lease in mine for at in lease.at]

    def held_by_durable(self, message: Message) -> bool:
        return any(message.places[name].where == "leased" for name in self.durable())

    def expected_by_durable(self, message: Message) -> bool:
        """Return whether a new subscription is still to get the message."""
        return any(message.places[name].where == "backlog" for name in self.durable())

    def expired(self, now: int) -> list[Message]:
        """Return what counts and has expired."""
        return [m for m in self.counted() if m.expires is not None and m.expires <= now and not m.immortal]

    def due_to_expire(self, now: int) -> list[Message]:
        expired = self.expired(now)
        return [m for m in expired if not self.held_by_durable(m) and not self.expected_by_durable(m)]

    def withdraw(self, held: Iterable[Message], *, bury: bool) -> None:
        """Withdraw expired messages from all subscriptions where they wait, also while one subscription holds them."""
        for message in held:
            for name, place in message.places.items():
                if place.where not in ("waiting", "delayed"):
                    continue
                if bury and self.subscriptions[name].durable:
                    self.bury(message, name)
                else:
                    message.places[name] = Place("settled", before=place.before)
                    message.why = "expired" if self.subscriptions[name].durable else message.why
        self.settle_up()

    def restart(self) -> None:
        """Drop leases and ephemeral subscriptions, which do not outlive the process."""
        for token in list(self.leases):
            self.release(token, list(self.leases[token].at))
        for name in [name for name, each in self.subscriptions.items() if not each.durable]:
            self.unsubscribe(name)
