"""Forged tokens, on every wire of a node that takes the tokens of a real provider."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.oidc.doors import DOORS, FLIGHT_TOKEN_CHARS
from tests.oidc.forged import FORGERIES, Forger, assert_nothing_leaked
from tests.oidc.nodes import taking_tokens


@pytest.fixture(scope="module")
def home(tmp_path_factory, identity):
    with taking_tokens(tmp_path_factory.mktemp("node"), identity.issuer) as found:
        yield found


def forgeries(wire: str, forger: Forger) -> dict[str, str]:
    made = {name: make(forger) for name, make in FORGERIES.items()}
    fitting = {name: token for name, token in made.items() if wire != "flight" or len(token) < FLIGHT_TOKEN_CHARS}
    assert len(fitting) >= len(made) - 1
    return fitting


@pytest.mark.rows("P12")
@pytest.mark.parametrize("wire", DOORS)
def test_forged_tokens_are_refused_alike_and_nothing_leaks(wire, home, identity, caplog):
    caplog.set_level(logging.DEBUG)
    enter, forger = DOORS[wire], Forger(identity.issuer)
    good = identity.token("boss")
    assert enter(home.node, good).is_in
    assert enter(home.node, forger.good()).is_in or wire == "management", "what is forged from is good"
    forged = forgeries(wire, forger)
    with ThreadPoolExecutor(24) as threads:  # a refusal of some wires comes after a pause
        answers = dict(zip(forged, threads.map(lambda token: enter(home.node, token), forged.values()), strict=True))
    assert [name for name, answer in answers.items() if answer.is_in] == []
    texts = {answer.text for answer in answers.values()}
    assert len(texts) == 1, texts
    assert_nothing_leaked(caplog.text + "".join(texts), (good, *forged.values()))
    assert enter(home.node, good).is_in, "and the node goes on"


@pytest.mark.rows("P12")
@pytest.mark.parametrize("wire", DOORS)
def test_a_forged_token_has_the_answer_of_any_other_text(wire, home, identity):
    """So a client cannot find out by the answer how far a forgery came."""
    enter, forged = DOORS[wire], FORGERIES["another issuer: of another realm"](Forger(identity.issuer))
    assert enter(home.node, forged).text == enter(home.node, "hello").text
