"""What a shard knows: catalog, partitions, the state of each message for each subscription, leases."""
