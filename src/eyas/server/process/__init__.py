"""The processes of a server, and how they start and end.

`launch` starts the HTTP process and its engine process and ends both; `supervisor` starts the engine
again when it dies, as often as `restarts` allows; `client` is the connection to an engine, through a
socket in a `socket_folder`; `node` is the launcher on machines that only compute. `listening` accepts
the connections of clients, on a port or at a `socket_file`. `start_choices` records what was chosen.
"""
