"""Who is there, and who provides what: membership by gossip, and registries of services. Knows no wire, no broker."""
