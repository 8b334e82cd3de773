"""Replicas of the engine: starting, watching and restarting them. Router and autoscaler come with several machines."""
