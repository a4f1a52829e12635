"""The client processes of the parts of `bench.lone`: a module for each client, a case for each part."""
