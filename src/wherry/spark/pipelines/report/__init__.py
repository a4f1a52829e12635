"""`report`: what went through topics, as JSON, a page and plots."""
