"""What can be declared: topics, subscriptions, routes, keys, webhooks."""
