"""The online door: HTTP in, HTTP out. Translates to and from the wire; the answer itself is `core_engine.predictors.predict`."""
