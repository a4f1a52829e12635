"""The columns of a load: names, strict types, and payloads as values. A bad row is a row with a reason."""
