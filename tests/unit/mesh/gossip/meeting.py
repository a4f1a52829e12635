"""Members in memory, on a network without faults that a test drives by hand."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from wherry.mesh.gossip.codec.packets import decode_packet
from wherry.mesh.gossip.core import Gossip, GossipStep
from wherry.mesh.gossip.terms import TICKS, GossipTerms
from wherry.mesh.gossip.values import Claim, MemberAddress, MemberEvent, Send, Standing
from wherry.mesh.instance import Instance

TERMS = GossipTerms(period_ms=1_000, forget_periods=50)


def address(number: int) -> MemberAddress:
    return MemberAddress(f"10.0.0.{number}", 7073)


def claim(number: int, incarnation: int = 1, standing: Standing = Standing.ALIVE, version: int = 1) -> Claim:
    return Claim(f"m{number}", address(number), incarnation, standing, version)


def instance(name: str = "a", **more: object) -> Instance:
    return Instance(service="billing", id=name, url="http://10.0.0.7:7080", **more)  # type: ignore[arg-type]


class Meeting:
    """Members by number; `lost` decides which packets do not arrive."""

    def __init__(self, count: int, terms: GossipTerms = TERMS) -> None:
        self.terms = terms
        self.now_ms = 0.0
        self.lost: Callable[[int, int], bool] = lambda _sender, _receiver: False
        self.cores: dict[int, Gossip] = {}
        self.events: list[tuple[int, MemberEvent]] = []
        self.sent: list[tuple[int, Send]] = []
        self.exchanges = 0
        for number in range(1, count + 1):
            self.add(number)

    def add(self, number: int, birth: int = 1) -> Gossip:
        seeds = [address(1)] if number > 1 else []
        core = Gossip(f"m{number}", address(number), birth, Random(number), self.terms, seeds)
        self.cores[number] = core
        return core

    def pass_periods(self, periods: float) -> None:
        for _ in range(round(periods * TICKS)):
            self.now_ms += self.terms.tick_ms
            for number, core in list(self.cores.items()):
                self.carry_out(number, core.tick(self.now_ms))

    def carry_out(self, number: int, step: GossipStep) -> None:
        self.events += [(number, event) for event in step.events]
        for send in step.sends:
            self.sent.append((number, send))
            to = self._at(send.to)
            if to is not None and not self.lost(number, to):
                self.carry_out(to, self.cores[to].receive(send.body, address(number), self.now_ms))
        for at in step.exchanges:
            self.exchange(number, at)

    def exchange(self, number: int, at: MemberAddress) -> None:
        to = self._at(at)
        if to is None or self.lost(number, to) or self.lost(to, number):
            return
        self.exchanges += 1
        one, other = self.cores[number], self.cores[to]
        answer, step = other.answer(one.offer(), self.now_ms)
        self.carry_out(to, step)
        rest, step = one.conclude(at, answer, self.now_ms)
        self.carry_out(number, step)
        self.carry_out(to, other.absorb(rest, self.now_ms))

    def held(self, number: int) -> list[str]:
        return sorted(self.cores[number].members.live)

    def packets(self, number: int) -> list[tuple[str, MemberAddress]]:
        return [(decode_packet(send.body).kind.name, send.to) for sender, send in self.sent if sender == number]

    def _at(self, at: MemberAddress) -> int | None:
        return next((number for number in self.cores if address(number) == at), None)
