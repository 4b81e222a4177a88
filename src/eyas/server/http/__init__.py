"""HTTP: connections, bodies, errors and streams, whatever a route is about.

A connection is read by `protocol` and passes `middleware` (keys, and `origins`). `body` reads and
validates a body within limits, `json_text` parses it, and work that would block the event loop runs in
`thread_pool`. `codes` lists the error codes, `errors` makes the answers of them, `error_context` and
`excerpts` add what an error is about, `missing_routes` what to use instead. `sse` writes answers no
faster than they are read.
"""
