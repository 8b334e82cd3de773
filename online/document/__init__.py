"""The OpenAPI document: what each route takes, answers and refuses. Every status, header and schema in it occurs."""
