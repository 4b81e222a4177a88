"""The step: scheduling, verifying, committing; and the process that runs it."""
