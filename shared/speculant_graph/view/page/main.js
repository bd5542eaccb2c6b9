// What the reader has chosen, what is asked for it, and the history of both.

import { forgetKey, keepKey, list, look, snapshot } from "./api.js";
import { focusMatches, showMatches } from "./matches.js";
import { awaitPlaces, forgetPlaces, showPlaces } from "./places.js";
import { focusSuccessors, showSuccessors } from "./successors.js";
import { focusTree, showTree } from "./tree.js";
import { byId, chip, colour, counted, html, learnGlyphs, whole } from "./words.js";

const PAUSE_MS = 220, RETRY_MS = 3000;
const PASSING = [0, 429, 503];  // statuses of what may be over in a moment; 0 is no answer
const main = document.querySelector("main"), typed = byId("typed"), wrong = byId("wrong");

/** Everything that Back brings back. */
let state = { graph: "", ids: [], isCut: false, order: "blend", strategy: "", budget: 0, seed: 0, most: 20 };
let about = null;
let answer = null;
let asking = null;
let depth = 0;
let waiting = 0, attempt = null;

const graph = () => about.graphs.find((each) => each.name === state.graph);
const mode = () => document.querySelector('input[name="mode"]:checked').value;

// --- asking

async function refresh(question, { remember = "", keepTyped = false, isCut = state.isCut } = {}) {
  asking?.abort();
  clearTimeout(waiting);
  const mine = new AbortController();
  asking = mine;
  main.setAttribute("aria-busy", "true");
  const asked = { ...question, successors: state.most, strategy: state.strategy, budget: state.budget, seed: state.seed };
  try {
    const found = await look(state.graph, asked, mine.signal);
    await letGo;
    if (asking !== mine) return;
    answer = found;
    showError("");
    state = { ...state, ids: found.token_ids, isCut: isCut || found.num_tokens > found.token_ids.length };
    if (remember === "push") history.pushState({ state, depth: ++depth }, "");
    else if (remember === "replace") history.replaceState({ state, depth }, "");
    draw(keepTyped);
  } catch (error) {
    if (asking !== mine || error.name === "AbortError") return;
    const repeat = () => refresh(question, { remember, keepTyped, isCut });
    if (error.status === 401) return void askForKey(repeat, error);
    showError(error, repeat);
  } finally {
    if (asking === mine) main.setAttribute("aria-busy", "false");
  }
}

const again = (change, remember = "replace") => {
  state = { ...state, ...change };
  return refresh({ token_ids: state.ids }, { remember, keepTyped: true });
};

function append(ids) {
  if (!ids.length || snapshot) return;
  const all = [...state.ids, ...ids], most = about.limits.tokens;
  refresh({ token_ids: all.slice(-most) }, { remember: "push", isCut: state.isCut || all.length > most });
}

/** Say what is wrong, or by "" that nothing is. What may pass by itself is tried again, now and then or at once. */
function showError(error, repeat = null) {
  clearTimeout(waiting);
  attempt = PASSING.includes(error.status) ? repeat : null;
  const tries = attempt ? `. This page tries again every ${RETRY_MS / 1000} seconds.` : "";
  const message = (error.message ?? error) + tries;
  // The same again is not announced again.
  if (wrong.textContent !== message) wrong.textContent = message;
  byId("problem").hidden = !message;
  byId("retry").hidden = !attempt;
  main.classList.toggle("stale", Boolean(message));
  if (message) byId("told").textContent = answer ? "No answer for this text: the results below are for an earlier one." : "";
  if (attempt) waiting = setTimeout(attempt, RETRY_MS);
}
byId("retry").addEventListener("click", () => attempt?.());

// What is pressed is still there when it is let go: an answer that comes in between is drawn after the click. Without
// this a node could not be chosen straight out of a field, whose change is asked for as soon as the button goes down.
let letGo = Promise.resolve();
addEventListener("pointerdown", () => {
  letGo = new Promise((resolve) => {
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(resolve), { once: true });
  });
}, true);

// --- drawing

function draw(keepTyped) {
  const { max_order: maxOrder } = graph();
  if (!keepTyped) fillTyped();
  byId("back").disabled = depth === 0 || snapshot !== null;
  const hidden = answer.num_tokens - answer.tokens.length;
  const known = answer.tokens.length - answer.matched_order;
  byId("chips").replaceChildren(
    ...(hidden ? [html("span", { class: "muted" }, `${whole(hidden)} more …`)] : []),
    ...answer.tokens.map((token, index) => chip(token, index < known ? "token" : "token known")));
  byId("told").textContent = matchNote();
  state.order = showMatches(answer, maxOrder, state.order, (order) => {
    state = { ...state, order };
    history.replaceState({ state, depth }, "");
    drawSuccessors();
    forgetPlaces(canFind());
  });
  drawSuccessors();
  forgetPlaces(canFind());
  byId("draft-note").textContent = draftNote();
  showTree(answer, maxOrder, append);
}

function fillTyped() {
  typed.value = mode() === "ids" ? answer.token_ids.join(" ") : answer.text ?? "";
}

function matchNote() {
  const { num_tokens: number, matched_order: order } = answer;
  const problem = answer.text_problem ? ` Shown as ids: ${answer.text_problem}.` : "";
  if (!number) return `No text yet: the most frequent tokens of the graph are listed.${problem}`;
  const cut = state.isCut ? ` ${cutNote()}` : "";
  const known = order
    ? `the last ${order === 1 ? "one is" : `${order} are`} the longest context that the graph knows`
    : "the graph knows none of their contexts";
  return `${counted(number, "token")}; ${known}.${cut}${problem}`;
}

function cutNote() {
  const { characters, tokens } = about.limits;
  return `Only the end is used: at most ${whole(characters)} characters and ${whole(tokens)} tokens.`;
}

const canFind = () => snapshot === null && answer.matched_order > 0 && answer.text !== null;

async function findPlaces() {
  const { order, ids } = state, asked = answer;
  const length = typeof order === "number" ? order : asked.matched_order;
  awaitPlaces();
  try {
    const question = { token_ids: ids.slice(-length), places: Math.min(20, about.limits.places), successors: 1, budget: 1 };
    const found = await look(state.graph, question);
    if (answer === asked && state.order === order) showPlaces(found);
  } catch (error) {
    if (answer !== asked) return;
    forgetPlaces(canFind());
    if (error.status === 401) return void askForKey(findPlaces, error);
    showError(error);
  }
}
byId("find").addEventListener("click", findPlaces);

function drawSuccessors() {
  const { order } = state;
  let successors, note, mark;
  if (order === "blend") {
    successors = answer.blend.successors;
    note = BLENDS[answer.blend.name];
    mark = "var(--strong)";
  } else if (order === "anywhere") {
    successors = answer.anywhere;
    note = "Shares of all tokens, in any context.";
    mark = "var(--unordered)";
  } else {
    const summary = answer.orders[order - 1];
    successors = summary.successors;
    note = `${counted(summary.num_successors, "token")} followed ${order === 1 ? "the last token" : `the last ${order} tokens`}.`;
    mark = colour(order, graph().max_order);
  }
  byId("next-note").textContent = snapshot ? note : `${note} Choose a token to append it.`;
  showSuccessors(successors, mark, (successor) => append([successor.id]));
}

const BLENDS = {
  longest: "Successors of the longest known context alone, from which greedy and sampling draft.",
  calibrated: "Probabilities from all contexts and from the text itself, each weighted by how often its kind was right. The strategies adaptive, tree and specexec draft from them.",
};

function draftNote() {
  const { strategy, nodes, ended_early: ended, budget } = answer.draft;
  const what = `${about.capabilities[strategy].summary}.`.replace(/^./, (first) => first.toUpperCase());
  if (!nodes.length) return `${what} Empty: there is nothing here to draft from.`;
  const number = ended ? `${counted(nodes.length, "node")} of ${budget}: nothing more is known.` : `${counted(nodes.length, "node")}.`;
  return `${what} ${number}`;
}

function describeGraph() {
  const { num_tokens: tokens, max_order: order, num_contexts: contexts, tokenizer } = graph();
  byId("facts").textContent =
    `${counted(tokens, "token")} · orders 1–${order} · ${counted(contexts, "context")} · tokenizer ${tokenizer}`;
}

// --- choosing

function options(select, values, chosen) {
  select.replaceChildren(...values.map((value) => html("option", { value, ...(value === chosen ? { selected: "" } : {}) }, value)));
}

function fillControls() {
  options(byId("graph"), about.graphs.map((each) => each.name), state.graph);
  options(byId("strategy"), about.strategies, state.strategy);
  byId("budget").max = about.limits.budget;
  byId("budget").value = state.budget;
  byId("seed").value = state.seed;
  byId("seed-field").hidden = !about.capabilities[state.strategy].has_proposals;
  byId("most").value = state.most;
  describeGraph();
}

let pause = 0;
typed.addEventListener("input", () => {
  clearTimeout(pause);
  main.setAttribute("aria-busy", "true");
  pause = setTimeout(() => {
    // Words that are typed one after another are one step for Back.
    const remember = history.state?.typing ? "replace" : "push";
    const [asked, isCut] = question();
    refresh(asked, { remember, keepTyped: true, isCut }).then(() => {
      if (history.state) history.replaceState({ ...history.state, typing: true }, "");
    });
  }, PAUSE_MS);
});

/** What was typed, or its end, and whether something was left out. */
function question() {
  const { characters, tokens } = about.limits;
  if (mode() === "text") {
    // A character has two units at most; the first of those that are left may be half of one.
    const end = [...typed.value.slice(-2 * characters - 1)];
    const text = end.slice(-characters).join("").replace(/^[\udc00-\udfff]/, "");
    return [{ text }, end.length > characters];
  }
  const ids = typed.value.match(/\d+/g) ?? [];
  return [{ token_ids: ids.slice(-tokens).map(Number) }, ids.length > tokens];
}

for (const radio of document.querySelectorAll('input[name="mode"]')) {
  radio.addEventListener("change", () => {
    typed.placeholder = mode() === "ids" ? "Token ids, such as 17 4 9" : "Type or paste text to see what the graph expects next";
    if (answer) fillTyped();
  });
}

function number(input, change) {
  input.addEventListener("change", () => {
    if (input.reportValidity()) again(change(input.valueAsNumber));
  });
}

number(byId("budget"), (budget) => ({ budget }));
number(byId("seed"), (seed) => ({ seed }));
byId("strategy").addEventListener("change", (event) => {
  byId("seed-field").hidden = !about.capabilities[event.target.value].has_proposals;
  again({ strategy: event.target.value });
});
byId("most").addEventListener("change", (event) => again({ most: Number(event.target.value) }));
byId("graph").addEventListener("change", (event) => {
  state = { ...state, graph: event.target.value };
  describeGraph();
  // Another graph may have another tokenizer: what was typed is asked again, ids as they are.
  const [asked, isCut] = mode() === "text" && !answer?.text_problem ? question() : [{ token_ids: state.ids }, state.isCut];
  refresh(asked, { remember: "push", isCut });
});
byId("back").addEventListener("click", () => depth > 0 && history.back());
byId("clear").addEventListener("click", () => {
  refresh({ token_ids: [] }, { remember: "push", isCut: false });
  typed.value = "";
  typed.focus();
});

window.addEventListener("popstate", (event) => {
  if (!event.state || !about) return;
  ({ state, depth } = event.state);
  fillControls();
  refresh({ token_ids: state.ids });
});

// --- keys and dialogs

const shortcuts = {
  "/": () => typed.focus(),
  m: focusMatches,
  n: focusSuccessors,
  t: focusTree,
  b: () => byId("back").click(),
  "?": () => byId("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target === typed) typed.blur();
  const isTyping = event.target.matches("textarea, select, input:not([type=radio])");
  const act = shortcuts[event.key];
  if (!act || isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  act();
});
byId("help").addEventListener("click", shortcuts["?"]);

let retry = null;

function askForKey(then, error) {
  retry = then;
  const door = byId("door");
  byId("refused").textContent = sessionStorage.length ? error.message : "";
  forgetKey();
  byId("token").value = "";
  if (!door.open) door.showModal();
}
byId("door").addEventListener("close", () => {
  const key = byId("token").value;
  if (!key) return showError("a key is needed; reload the page to be asked again");
  keepKey(key);
  retry();
});

// --- the beginning

/** Nothing more can be asked: what is shown stays, and can be looked at. */
function freeze() {
  typed.readOnly = true;
  for (const control of document.querySelectorAll("header select, .ask button, .fields select, .fields input")) {
    control.disabled = true;
  }
  byId("version").textContent += " · saved by speculant view; a sidecar's explorer can continue from here";
}

async function start() {
  try {
    about = await list();
  } catch (error) {
    main.setAttribute("aria-busy", "false");
    if (error.status === 401) return askForKey(start, error);
    return showError(error, start);
  }
  showError("");
  learnGlyphs(about.glyphs);
  byId("version").textContent = `speculant-graph ${about.version}`;
  if (snapshot) freeze();
  if (!about.graphs.length) return showError("no graph is served to this key; name one in the access file, or load one");
  const first = about.graphs.find((each) => each.is_default) ?? about.graphs[0];
  const kept = history.state?.state;
  if (kept && about.graphs.some((each) => each.name === kept.graph)) ({ state, depth } = history.state);
  else state = { ...state, graph: first.name, ...about.defaults };
  fillControls();
  await refresh({ token_ids: state.ids }, { remember: "replace" });
  if (answer?.text_problem) document.querySelector('input[name="mode"][value="ids"]').click();
  // On a phone this would bring up the keyboard over the page.
  if (!state.ids.length && !snapshot && matchMedia("(pointer: fine)").matches) typed.focus();
}

start();
