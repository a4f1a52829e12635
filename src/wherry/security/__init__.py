"""Who may do what (keys and rights), and how the line is kept private (TLS). Knows no wire and no broker."""
