"""What is measured: each module has `provide(port)`, which serves until it ends, and `call(port, count, under_way)`."""
