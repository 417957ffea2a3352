"""Running the playbooks through ansible-runner, and the settings they get."""
