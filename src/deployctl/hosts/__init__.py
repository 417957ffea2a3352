"""Reaching a machine over SSH: targets, keys, facts, tunnels."""
