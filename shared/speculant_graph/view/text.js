// What the page says around its tree, and what all parts of the script use.

const data = JSON.parse(document.getElementById("data").textContent);
const around = data.neighbourhood;
const graph = data.graph;
const ROW = 34, HEIGHT = 26, PAD = 9, KNOB = 9, TOP = 60, BOTTOM = 52, SMALLEST = 0.12, READABLE = 0.66, LARGEST = 3;
const MONO = '13px ui-monospace, "SF Mono", "Cascadia Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const SANS = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif';
const byId = (id) => document.getElementById(id);
const canvas = document.querySelector(".canvas"), svg = byId("tree"), card = byId("card");
const isNarrow = canvas.clientWidth < 560;
const GAP = isNarrow ? 48 : 58, LONGEST = isNarrow ? 16 : 30;
const pen = document.createElement("canvas").getContext("2d");

// --- small things

const whole = (number) => number.toLocaleString("en");
const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

function percent(share) {
  if (share >= 1) return "100%";
  if (share > 0.995) return ">99%";
  if (share >= 0.0995) return `${Math.round(100 * share)}%`;
  return share >= 0.0005 ? `${(100 * share).toFixed(1)}%` : "<0.1%";
}

/** Split a text into [piece, stands for something invisible]. */
function pieces(text, longest = Infinity) {
  const found = [];
  let number = 0;
  for (const character of text) {
    if (++number > longest) {
      found.push(["…", true]);
      break;
    }
    const glyph = data.glyphs[character];
    const last = found[found.length - 1];
    if (last && last[1] === (glyph !== undefined)) last[0] += glyph ?? character;
    else found.push([glyph ?? character, glyph !== undefined]);
  }
  return found.length ? found : [["∅", true]];
}

const shown = (text, longest) => pieces(text, longest).map((piece) => piece[0]).join("");

function widthOf(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

function html(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const chip = (text, className = "token") =>
  html("span", className, ...pieces(text).map(([piece, isGlyph]) => html("span", isGlyph ? "glyph" : "", piece)));

/** The colour of a context's order, from --low over --middle to --high. */
function colour(order) {
  if (!order) return "var(--unordered)";
  const share = graph.max_order > 1 ? (200 * (order - 1)) / (graph.max_order - 1) : 200;
  return share > 100
    ? `color-mix(in oklab, var(--high) ${Math.round(share - 100)}%, var(--middle))`
    : `color-mix(in oklab, var(--middle) ${Math.round(share)}%, var(--low))`;
}

function swatch(order) {
  const element = html("span", "swatch");
  element.style.background = colour(order);
  return element;
}

// --- the text around the tree

function describe() {
  byId("name").textContent = graph.name;
  const tokenizer = graph.tokenizer.split("/").pop();
  byId("facts").textContent =
    `${counted(graph.num_tokens, "token")} · orders 1–${graph.max_order} · tokenizer ${tokenizer}`;
  const line = byId("prompt");
  const hidden = around.num_prompt_tokens - around.unused.length - around.context.length;
  if (!around.num_prompt_tokens) {
    line.append(html("span", "said", "No prompt: these are the most frequent tokens of the graph."));
    return;
  }
  line.append(html("span", "said", "After"));
  if (hidden) line.append(html("span", "said", `… ${whole(hidden)} more`));
  for (const [tokens, className] of [[around.unused, "token"], [around.context, "token known"]]) {
    for (const token of tokens) {
      const element = chip(token.text, className);
      element.title = `id ${token.token_id}`;
      line.append(element);
    }
  }
  const order = around.context.length;
  line.append(html("span", "said", order
    ? `the last ${order === 1 ? "token is" : `${order} tokens are`} known to the graph`
    : "no end of it is known: these are the most frequent tokens of the graph"));
}

function tabulate() {
  const hasPrompt = around.num_prompt_tokens > 0;
  if (!hasPrompt) {
    byId("orders-note").textContent =
      "Without a prompt there is no context: the tree begins with the most frequent tokens, as shares of all.";
    byId("orders-table").hidden = true;
  }
  for (const summary of hasPrompt ? [...around.orders].reverse() : []) {
    const row = html("tr", summary.order === around.context.length ? "used" : "");
    const heading = html("th", "", swatch(summary.order), String(summary.order));
    heading.scope = "row";
    const seen = html("td");
    const next = html("td");
    if (summary.num_successors) {
      seen.append(whole(summary.num_successors), html("span", "number", counted(summary.count, "time")));
      const tokens = html("div", "tokens");
      for (const successor of summary.successors) {
        const pair = html("span", "pair", chip(successor.text), html("span", "share", percent(successor.probability)));
        pair.title = `id ${successor.token_id}, ${counted(successor.count, "time")}`;
        tokens.append(pair);
      }
      next.append(tokens);
    } else {
      seen.append(html("span", "number", "–"));
      next.append(html("span", "number", summary.context.length ? "not in the graph" : "the prompt is shorter"));
    }
    row.append(heading, seen, next);
    byId("orders").append(row);
  }
  const facts = {
    Tokenizer: graph.tokenizer,
    Vocabulary: counted(graph.vocabulary_size, "id"),
    "Tokens counted": whole(graph.num_tokens),
    Documents: whole(graph.num_documents),
    Contexts: whole(graph.num_contexts),
    "Successors of them": whole(graph.num_transitions),
    Built: graph.built_at,
    "Shown here": counted(around.num_steps, "token"),
  };
  for (const [name, fact] of Object.entries(facts)) byId("graph").append(html("dt", "", name), html("dd", "", fact));
  const legend = byId("legend");
  legend.append("Order of the context");
  const lowest = around.context.length ? 1 : 0;
  for (let order = lowest; order <= graph.max_order; order++) {
    legend.append(html("span", "", swatch(order), order ? String(order) : "none"));
  }
}
