"""What the host does while it is measured, and the gates that invalidate a probe."""
