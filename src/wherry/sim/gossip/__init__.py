"""Many members of gossip on a network that loses, repeats, delays and cuts, all from one seed."""
