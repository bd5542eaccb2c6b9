// The orders of the context: which ends of the text the graph knows, and which one's successors are listed.

import { byId, chip, colour, counted, html, whole } from "./words.js";

const list = byId("matches");
const BLENDED = {
  longest: ["↑", "Longest match alone"],
  calibrated: ["∑", "All orders and text"],
};

/**
 * Draw one row for each order, the longest first, and one for what drafts are made from.
 * @param answer of the sidecar
 * @param maxOrder of the graph
 * @param chosen "blend", "anywhere" or an order; the nearest that can be chosen is returned
 * @param choose called with what the reader chooses
 */
export function showMatches(answer, maxOrder, chosen, choose) {
  const known = answer.orders.filter((summary) => summary.num_successors).map((summary) => summary.order);
  const isKnown = chosen === "blend" || known.includes(chosen);
  const now = answer.matched_order ? (isKnown ? chosen : "blend") : "anywhere";
  const hadFocus = list.contains(document.activeElement);
  const rows = [];
  if (answer.matched_order) {
    const [label, title] = BLENDED[answer.blend.name];
    rows.push(row("blend", label, [title], blendNote(answer), "var(--strong)", now, choose));
  } else {
    const note = counted(answer.num_different, "token");
    rows.push(row("anywhere", "0", ["Anywhere in the corpus"], note, "var(--unordered)", now, choose));
  }
  for (const summary of [...answer.orders].reverse()) {
    const { order } = summary;
    const context = summary.context.map((token) => chip(token));
    if (summary.num_successors) {
      const note = `${counted(summary.count, "time")} · ${whole(summary.num_successors)} next`;
      rows.push(row(order, String(order), context, note, colour(order, maxOrder), now, choose));
    } else {
      const why = context.length ? "not in the graph" : "the text is shorter";
      rows.push(html("div", { class: "match unknown" }, html("span", { class: "order" }, String(order)),
        html("span", { class: "context" }, html("bdi", {}, ...context)), html("span", { class: "seen" }, why)));
    }
  }
  list.replaceChildren(...rows);
  if (hadFocus) focusMatches();
  return now;
}

export const focusMatches = () => list.querySelector("input:checked")?.focus();

function row(value, label, context, note, mark, now, choose) {
  const input = html("input", { type: "radio", name: "order", value });
  input.checked = value === now;
  input.addEventListener("change", () => choose(value));
  const order = html("span", { class: "order" }, html("span", { class: "unseen" }, value === label ? "" : "Order "), label);
  order.style.setProperty("--mark", mark);
  return html("label", { class: "match" }, input, order,
    html("span", { class: "context" }, html("bdi", {}, ...context)), html("span", { class: "seen" }, note));
}

function blendNote(answer) {
  const number = answer.blend.num_successors;
  return number === null ? answer.blend.name : `${answer.blend.name} · ${whole(number)} next`;
}
