"""A server with a known capacity, in virtual time and behind real sockets."""
