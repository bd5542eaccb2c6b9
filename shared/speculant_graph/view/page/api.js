// The sidecar's answers, or those that the page was saved with. A refusal is an Error with the one line that the sidecar
// says.

const KEY = "speculant explorer key";
const BASE = "api/v1/graphs";
const saved = document.getElementById("saved");

/** In a page that was saved with them, what `list` and `look` return, whatever is asked; elsewhere null. */
export const snapshot = saved && JSON.parse(saved.textContent);

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);
export const forgetKey = () => sessionStorage.removeItem(KEY);

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "the sidecar does not answer; check that it is running");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, content.error ?? `the sidecar answered ${response.status}`);
  return content;
}

/** What there is to look at, and within which limits. */
export const list = async () => snapshot?.list ?? ask(BASE);

/** What a graph knows after a text; `question` as docs/explorer.md describes it. */
export const look = async (graph, question, signal) =>
  snapshot?.answer ?? ask(`${BASE}/${encodeURIComponent(graph)}/look`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
    signal,
  });
