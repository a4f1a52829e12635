"""The endpoints of the mesh on the HTTP port: its view, and what a peer asks about a topic."""

from __future__ import annotations

from wherry.node.mesh.figures import MeshView, TopicAtNode
from wherry.node.mesh.mesh import NodeMesh
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import Answer, json_response


class MeshEndpoints:
    """The endpoints, over the mesh of one node."""

    def __init__(self, mesh: NodeMesh) -> None:
        self._mesh = mesh

    def table(self) -> EndpointGroup:
        """Return all endpoints, for the server of the port."""
        table = EndpointGroup("mesh")
        table.add("GET", "/v1/mesh", "admin", answers={200: MeshView})(self.show_mesh)
        table.add("GET", "/v1/topics/{topic}/mesh", "consume", answers={200: TopicAtNode})(self.show_topic_at_node)
        return table

    async def show_mesh(self, call: ApiCall) -> Answer:
        """Show the links of this node to its peers, what the peers have not read yet, and whom it knows."""
        return json_response(self._mesh.view(), headers=[("Cache-Control", "no-store")])

    async def show_topic_at_node(self, call: ApiCall) -> Answer:
        """Show what a peer has to know of a `flow` topic before it reads it: node, role, run of the data."""
        return json_response(self._mesh.topic(call["topic"]), headers=[("Cache-Control", "no-store")])
