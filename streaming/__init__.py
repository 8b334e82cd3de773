"""The streaming door: consumes events, keeps windows, scores each event, publishes one prediction per event.

`transport` is the port to the broker, `kafka_transport` its implementation; `worker` does the work on its event loop
and calls `core_engine.predictors.predict`, as the other doors do.
"""
