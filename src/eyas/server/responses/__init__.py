"""/v1/responses: a chat in the form of OpenAI's Responses API.

`conversion` and `input` convert a request (`models`) to that of a chat, `format` and `items` write its
answer, and `store` keeps it for the requests that continue it. `routes` are the handlers.
"""
