"""What runs inside Locust's own process. Everything in here imports gevent or Locust; the parent imports none of it."""
