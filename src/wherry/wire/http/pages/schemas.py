"""The Avro schemas that messages are written in."""

from __future__ import annotations

from typing import Any

from wherry.model.errors import NotFound
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.formats import SCHEMAS
from wherry.wire.http.protocol.message import Answer, json_response

TABLE = EndpointGroup("system")


@TABLE.add("GET", "/v1/schemas/{schema}", "none", answers={200: dict[str, Any]})
async def get_schema(call: ApiCall) -> Answer:
    """Get the Avro schema of a message as a producer gives it (`message`), or as a consumer gets it (`delivered`)."""
    if call["schema"] not in SCHEMAS:
        raise NotFound("schema", call["schema"])
    return json_response(SCHEMAS[call["schema"]])
