"""The command line: one thin module per command. It renders events and records and decides nothing."""
