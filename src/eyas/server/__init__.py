"""The HTTP process: OpenAI's routes, Anthropic's messages and SGLang's native route, in front of one
engine process.

A chat request passes through these modules in this order. `middleware` checks its host, origin and key.
`answering` has the steps that all routes take: it reads and validates the body (`body`,
`request_models`), lets the route translate it (`answer_routes`), and answers. `chat` makes an engine
request (`eyas.core.Request`) of it: `template_inputs` and `text_processor` render and tokenize the
prompt, `tools` and `constraints` define what the output must be, `sampling` how it is sampled.
`answer` submits the request to the engine process (`supervisor`, `client`) and receives deltas. For
each delta `chat_format` makes chunks, in which `choice_segmenter` has separated reasoning, content
and tool calls, and `sse` writes the chunks as events. Without `stream`, `answer` collects the deltas
(`formats.ChoiceOutput`) and `chat_format` makes one object of them. The other two routes differ in
`completions` and `generate`, each of which makes requests and formats answers. `/v1/responses`
(`response_routes`) is a chat in another form: `responses` and `response_input` convert its request to
that of a chat, `responses_format` and `response_items` write its answer, and `response_store` keeps it.
So is `/v1/messages`: `messages` and `messages_input` convert its request,
`messages_format` and `messages_blocks` write its answer. `converted_chat` prepares both.

Promises: imports neither torch nor the engine; every field that is accepted works, and every other
field is a 400 that names it; a client always gets an answer.
Does not know: how tokens are generated.
"""
