"""The open-loop load generator: when requests are due, who is asked what, one bounded pool of connections, a report.

It knows HTTP and JSON and nothing of how the server answers, so that any OpenAI-compatible server is measured alike.
"""
