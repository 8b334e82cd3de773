"""Airflow wiring only: DAG files that start the batch door in the product's own interpreter.

Nothing here computes, and nothing here imports anything of ours: a scheduler parses it without torch.
"""
