"""A host, an SSH server and an inference engine without any server of one's own."""
