"""Values and words of Wherry: messages, topics, subscriptions, journal operations, limits and errors.

Nothing here decides, waits, or touches a file; every other folder may import this one.
"""
