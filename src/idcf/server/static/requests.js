// Requests to the server. An error says in words what is wrong and what to do.

import { askForKey, currentKey } from "./key.js";

const TIMEOUT_MS = 30_000, BUSY_ATTEMPTS = 5, MAX_DETAIL = 300;

const NO_KEY = "This server needs an API key. Ask whoever runs it for one, then try again and enter it.";

export class RequestError extends Error {}

// Send a request and return its JSON. A busy server is asked again, and once after too many requests;
// `onBusy` is called before each wait.
// A server that needs an API key is asked again with the one that the user enters.
export async function call(path, body, { signal, onBusy = () => {} } = {}) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  const startTimer = () => setTimeout(() => controller.abort(new DOMException("no answer", "TimeoutError")), TIMEOUT_MS);
  let timeout = startTimer(), wasLimited = false;
  try {
    for (let attempt = 1; ; attempt++) {
      const key = currentKey(), headers = key ? { authorization: `Bearer ${key}` } : {};
      const options = body ? { method: "POST", body: JSON.stringify(body), headers: { ...headers, "content-type": "application/json" } } : { headers };
      const response = await fetch(path, { ...options, signal: controller.signal });
      if (response.ok) return await response.json();
      if (response.status === 401) {
        clearTimeout(timeout); // the user has as long as it takes
        if (!(await askForKey(key))) throw new RequestError(NO_KEY);
        timeout = startTimer();
        continue;
      }
      const delay = 1000 * Number(response.headers.get("retry-after") || 1);
      const mayRetry = response.status === 503 ? attempt < BUSY_ATTEMPTS : response.status === 429 && !wasLimited && delay < TIMEOUT_MS;
      wasLimited ||= response.status === 429;
      if (!mayRetry) throw new RequestError(await describeRefusal(response));
      onBusy();
      await wait(delay, controller.signal);
    }
  } catch (error) {
    if (signal?.aborted) throw new DOMException("replaced by a later request", "AbortError");
    throw error instanceof RequestError ? error : new RequestError(describeFailure(error));
  } finally {
    clearTimeout(timeout);
    signal?.removeEventListener("abort", abort);
  }
}

const wait = (duration, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, duration);
  signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
});

function describeFailure(error) {
  if (error.name === "TimeoutError") return `The server did not answer within ${TIMEOUT_MS / 1000} seconds. Try again later.`;
  if (error instanceof SyntaxError) return "The answer is not that of an idcf server. Check the address, then try again.";
  return "The server cannot be reached. Check that it is running and that you are connected, then try again.";
}

async function describeRefusal(response) {
  const { status } = response;
  if (status === 503) return "The server is busy. Wait a moment, then try again.";
  if (status === 413) return "This is more than the server takes in one request. Remove some titles, then try again.";
  const detail = await response.json().then((x) => String(x.detail).slice(0, MAX_DETAIL), () => response.statusText);
  if (status === 429) return `Too many requests: ${detail}. Wait a moment, then try again.`;
  if (status === 422) return `The server refuses this: ${detail}. If the model was replaced, load this page again.`;
  return `The server failed with status ${status} (${detail}). Try again; if it fails again, tell whoever runs the server.`;
}
