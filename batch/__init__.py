"""The batch door: nightly jobs that precompute predictions and publish them as one generation.

What belongs here: job contract, checkpoints, readers and writers, generation publish. It comes with the second half
of the main job; it will call `core_engine.predictors.predict` and the engine client, as the online door does.
"""
