"""The LLM engine: scheduler, KV blocks, step-time model, decoder, and the one async client that reaches it."""
