"""A real OpenSSH server on the loopback, for every test that needs one."""
