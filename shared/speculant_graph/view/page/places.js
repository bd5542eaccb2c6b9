// Where the chosen end of the text stands in the files that the graph was built from.

import { byId, counted, html } from "./words.js";

const list = byId("places"), note = byId("places-note"), find = byId("find");
const STATES = {
  missing: "is missing",
  changed: "has changed since the build",
  unreadable: "can't be read",
  "not kept": "came through a pipe",
};

/** Show no places, for a context of which none were asked for. */
export function forgetPlaces(canFind) {
  list.replaceChildren();
  note.textContent = "";
  find.disabled = !canFind;
}

/** Say that files are searched. */
export function awaitPlaces() {
  forgetPlaces(false);
  note.textContent = "Searching …";
}

/** Show what a search found; `found` as docs/explorer.md describes it. */
export function showPlaces(found) {
  forgetPlaces(true);
  const { places, places_unsearched: unsearched, places_complete: isComplete, places_seen: seen } = found;
  const number = places.length ? counted(places.length, "place") : "No place";
  const rest = isComplete ? "" : " The search ended there; there may be more.";
  const left = unsearched.length ? ` Not searched: ${counted(unsearched.length, "file")}.` : "";
  note.textContent = `${number} in the corpus files; counted ${counted(seen, "time")}.${rest}${left}`;
  list.replaceChildren(
    ...places.map(({ file, page, line, column, text }) => html("li", {},
      html("span", { class: "where" }, `${file}:${page ? `page ${page}:` : ""}${line}:${column}`), " ",
      html("bdi", { class: "line" }, text))),
    ...unsearched.map(({ file, state }) => html("li", { class: "muted" },
      html("span", { class: "where" }, file), ` ${STATES[state]}`)));
}
