"""What a server tells about requests and itself: metrics, the request log, traces.

`record` is what is known of a request when it has ended. `request_log` writes a line of it, `traces` a
span. `metrics` counts, and `metrics_format` writes the counts for Prometheus.
"""
