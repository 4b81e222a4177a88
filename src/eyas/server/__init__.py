"""The HTTP process: OpenAI's routes, and SGLang's native one, in front of one engine process.

Promises: imports neither torch nor the engine; every field that is accepted works, every other one
is a 400 that names it; a client always gets an answer.
Does not know: how tokens come about.
"""
