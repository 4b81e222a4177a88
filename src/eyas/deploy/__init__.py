"""Servers under other projects' cluster managers: `eyas.deploy.ray` is an application of Ray Serve."""
