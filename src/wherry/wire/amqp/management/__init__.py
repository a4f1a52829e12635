"""What tools ask RabbitMQ's management interface for, and have it do, in its paths, shapes and words."""
