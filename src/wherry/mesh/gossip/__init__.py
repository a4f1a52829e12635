"""Membership by gossip: who is there and what each member provides, without a server that everybody has to reach."""
