"""The HTTP process: OpenAI's routes, Anthropic's messages and SGLang's native route, in front of one
engine process.

A chat request passes through these modules in this order. `http.middleware` checks its host, origin
and key. `answering` has the steps that all routes take: it reads and validates the body
(`request_reader`, `http.body`, `request_models`), lets the route translate it (`answer_routes`), and
answers. `chat` makes an engine request (`eyas.core.Request`) of it: `template_inputs` and
`text_processor` render and tokenize the prompt, `tools` and `constraints` define what the output must
be, `sampling` how it is sampled. `answer` submits the request to the engine process
(`process.supervisor`, `process.client`) and receives deltas. For each delta `chat_format` makes chunks,
in which `choice_segmenter` has separated reasoning, content and tool calls, and `http.sse` writes the
chunks as events. Without `stream`, `answer` collects the deltas (`formats.ChoiceOutput`) and
`chat_format` makes one object of them. `completions` and `generate` make requests and format answers of
the other two routes. `responses` and `messages` are chats in the form of other APIs; `converted_chat`
prepares both.

`app` is the table of routes, `service` the state that they share. `process` starts and ends the
processes, `telemetry` has metrics, logs and traces, `playground` the web page.

Promises: imports neither torch nor the engine; every field that is accepted works, and every other
field is a 400 that names it; a client always gets an answer.
Does not know: how tokens are generated.
"""
