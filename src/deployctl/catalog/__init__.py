"""Plans, models, SLOs and workloads, as read from the inventory folder."""
