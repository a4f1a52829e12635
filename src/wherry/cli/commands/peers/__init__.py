"""Commands about services of peers."""
