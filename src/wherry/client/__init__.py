"""The Python client: one interface to a broker over HTTP (`connect`) and to one in this process (`embedded`)."""
