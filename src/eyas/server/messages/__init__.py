"""/v1/messages: a chat in the form of Anthropic's Messages API.

`conversion` and `input` convert a request (`models`) to that of a chat, `format` and `blocks` write its
answer.
"""
