"""What can be declared: topics, subscriptions, routes, keys, webhooks. Checked when it is made."""
