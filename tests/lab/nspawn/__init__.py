"""Real Debian hosts with systemd, sshd and an address of their own, booted by systemd-nspawn for the tests."""
