"""The engine step (scheduling, drafting, forward, verifying, committing) and the engine process."""
