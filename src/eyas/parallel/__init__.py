"""Several processes, the ranks, that run one network together: each computes a part of every layer."""
