"""Values of Wherry: messages, topics, subscriptions, journal operations, limits and errors.

Nothing here decides, waits or touches a file. Every other folder may import this one.
"""
