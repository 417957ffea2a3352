"""Load generation: the driver of the Locust process, the samples it takes, the streaming client."""
