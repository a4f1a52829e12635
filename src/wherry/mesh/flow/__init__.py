"""The mesh of `flow` topics: who connects to whom, and what is passed on; decisions without a clock or a socket."""
