// The server's API. The key, if the server wants one, is kept in this module's memory only.

let key = "";

export function useKey(value) {
  key = value.trim();
}

/** A refusal of the server. param: the field at fault, or null. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.param = error?.param ?? null;
  }
}

function headers(extra = {}) {
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error);
}

export async function get(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

/** Yields the chunks of a streamed chat completion. */
export async function* streamChat(body, signal) {
  const response = await checked(
    await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    }),
  );
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError(response.status, { message: "the answer broke off" });
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        if (event === "data: [DONE]") return;
        const chunk = JSON.parse(event.slice(6));
        if (chunk.error) throw new ApiError(response.status, chunk.error);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
