"""The batch door: nightly jobs that precompute predictions and publish them as one generation.

`door.run_job` is the whole of it: job contract and checkpoints (`checkpoints`), rows in (`reader`), units (`runner`,
`work`), files out (`output`), generation publish (`publish`). It calls `core_engine.predictors.predict` and the engine
client, as the online door does.
"""
