"""The REST interface: the table of endpoints, checked input, errors, OpenAPI."""
