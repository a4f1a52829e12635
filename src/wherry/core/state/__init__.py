"""What a shard knows: catalog, partitions, where each message stands for each subscription, leases."""
