"""What a session needs of the application that answers HTTP: calls, rights, problem documents, room for large bodies.

The node implements it over the application of the HTTP port, which this wire does not know: so a call has the same
routing, rights and endpoints whichever way it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from wherry.model.catalog.key import Verb
from wherry.model.errors import WherryError
from wherry.wire.native.codec.calls import CallHead
from wherry.wire.native.codec.frames import Chunk


class CallReply(NamedTuple):
    """The answer to a CALL."""

    status: int
    headers: dict[str, str]
    body: list[Chunk]
    undo: Callable[[], None] | None = None
    """Called when the client disconnects before it got the answer."""


class ApplicationCall(Protocol):
    """One call under way."""

    @property
    def waits(self) -> bool:
        """Whether the call waits for messages or for an outcome, so that it may be cancelled."""

    async def run(self) -> CallReply:
        """Return the answer, whatever its status."""


class Application(Protocol):
    """Answers one client, by the key that its connection was opened with."""

    def check(self, verb: Verb, topic: str) -> str:
        """Return the name of the client (empty without keys); raise `Unauthorized` or `Forbidden`."""

    def problem(self, fault: WherryError) -> bytes:
        """Return the problem document of an error."""

    def call(self, head: CallHead, body: memoryview) -> ApplicationCall:
        """Return a call, which has not begun yet; raise for a head that is no request."""

    def hold(self, size: int) -> None:
        """Count bytes of a request, negative ones when it ends; raise if there is no room for them."""

    def keep(self, size: int) -> None:
        """Count bytes of an answer, negative ones when the client has read it; raise if there is no room for them."""

    def close(self) -> None:
        """Forget the client, since its connection is closed."""


class RefusedCall(WherryError):
    """A call that a session made for its client was refused; `document` is the problem, as it is sent on."""

    def __init__(self, document: bytes) -> None:
        super().__init__(document.decode("utf-8", "replace"))
        self.document = document
