"""The streaming door: Kafka consumers that score events as they happen.

What belongs here: transport port, poll loop, bounded worker, offset commits, dead letters. It comes with the second
half of the main job; it will call `core_engine.predictors.predict`, as the online door does.
"""
