"""Airflow wiring only: DAG files that start the batch door in the product's own interpreter.

Nothing here computes. The DAGs come with the second half of the main job; this package imports nothing heavy, so
that a scheduler can parse it without torch.
"""
