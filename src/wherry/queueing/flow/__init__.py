"""The flow of messages: intake, delivery, settling, dead letters, transactions."""
