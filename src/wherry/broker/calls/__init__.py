"""What callers ask of a broker, a module for each subject: publish, consume, settle, inspect, administer."""
