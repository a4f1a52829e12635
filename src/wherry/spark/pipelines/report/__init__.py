"""`report`: the messages of topics in figures, as JSON, a page and plots."""
