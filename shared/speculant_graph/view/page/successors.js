// The list of what comes next: a click or Enter appends a token and goes on.

import { snapshot } from "./api.js";
import { byId, chip, counted, html, percent, rove, spoken, whole } from "./words.js";

const list = byId("successors");
const buttons = () => [...list.querySelectorAll("button")];

/**
 * Draw the list.
 * @param successors of one context, the likeliest first
 * @param mark colour of their bars
 * @param append called with the token that is chosen
 */
export function showSuccessors(successors, mark, append) {
  const hadFocus = list.contains(document.activeElement);
  list.style.setProperty("--mark", mark);
  list.classList.toggle("uncounted", successors.every((successor) => successor.count === undefined));
  const largest = successors[0]?.probability || 1;
  list.replaceChildren(...successors.map((successor) => {
    const bar = html("span");
    bar.style.width = `${(100 * successor.probability) / Math.max(largest, 0.0001)}%`;
    const count = successor.count === undefined ? "" : `${whole(successor.count)}×`;
    const said = [spoken(successor), percent(successor.probability),
      ...(count ? [counted(successor.count, "time")] : [])].join(", ");
    const button = html("button", { type: "button", "aria-label": snapshot ? said : `append ${said}` },
      html("span", {}, chip(successor)), html("span", { class: "meter" }, bar),
      html("span", { class: "share" }, percent(successor.probability)),
      ...(count ? [html("span", { class: "count" }, count)] : []));
    button.addEventListener("click", () => append(successor));
    return html("li", {}, button);
  }));
  rove(buttons(), buttons()[0]);
  list.scrollTop = 0;
  if (hadFocus) focusSuccessors();
}

export const focusSuccessors = () => (list.querySelector('[tabindex="0"]') ?? byId("next")).focus();

list.addEventListener("focusin", (event) => {
  const button = event.target.closest("button");
  if (button) rove(buttons(), button);
});

list.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const all = buttons();
  const index = all.indexOf(document.activeElement);
  const target = {
    ArrowDown: all[index + 1], ArrowUp: all[index - 1], Home: all[0], End: all[all.length - 1],
  }[event.key];
  if (event.key === "ArrowRight") all[index]?.click();
  else if (event.key === "ArrowLeft") byId("back").click();
  else if (!["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  target?.focus();
});
