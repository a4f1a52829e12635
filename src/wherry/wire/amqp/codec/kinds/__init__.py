"""The methods of the protocol, a module for each class of them; `methods` is the table of all."""
