"""Values of calls: what a caller gives, and what it gets back."""
