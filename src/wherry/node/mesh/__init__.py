"""The links of a node to its peers in the mesh of `flow` topics."""
