"""Instances in ZooKeeper: a node for each, gone with the session of its process. Comes with `wherry[zookeeper]`."""
