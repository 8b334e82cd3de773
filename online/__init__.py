"""The online door: HTTP in, HTTP out. It translates to and from the wire; `core_engine.predictors.predict` answers."""
