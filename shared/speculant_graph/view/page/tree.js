// The draft as a picture: a tree from left to right. An edge is as wide as its token is probable, and has the colour of
// the order that knows it.

import { snapshot } from "./api.js";
import { byId, chip, colour, counted, drawn, html, percent, pieces, rove, spoken, whole } from "./words.js";

const ROW = 36, HEIGHT = 26, PAD = 9, GAP = 42, MARGIN = 16, LONGEST = 22, SMALLEST = 0.7;
const svg = byId("tree"), canvas = byId("canvas"), told = byId("node");
const pen = document.createElement("canvas").getContext("2d");
const fonts = getComputedStyle(document.documentElement);
const MONO = `13px ${fonts.getPropertyValue("--mono")}`, SANS = `11.5px ${fonts.getPropertyValue("--sans")}`;

let nodes = [];

/**
 * Draw a draft.
 * @param answer of the sidecar
 * @param maxOrder of the graph
 * @param append called with the token ids from the root to the node that is chosen
 */
export function showTree(answer, maxOrder, append) {
  const hadFocus = svg.contains(document.activeElement);
  nodes = [rooted(answer)];
  for (const step of answer.draft.nodes) {
    const parent = nodes[step.parent];
    const node = { step, parent, children: [], depth: parent.depth + 1, label: pieces(step, LONGEST) };
    // Where the strategy has no probabilities, the graph's own says how likely the token is.
    node.share = step.path_probability === null ? step.probability
      : step.path_probability / (parent.step?.path_probability || 1);
    node.said = node.share === null ? "" : percent(node.share);
    node.width = widthOf(node);
    parent.children.push(node);
    nodes.push(node);
  }
  told.replaceChildren();
  legend(maxOrder);
  canvas.hidden = nodes.length === 1;
  if (canvas.hidden) return svg.replaceChildren();
  const size = arrange(nodes[0]);
  // A little smaller if it is then seen whole; otherwise as it is, to be scrolled.
  const fits = (canvas.clientWidth - 2) / size.width;
  const scale = fits >= SMALLEST ? Math.min(1, fits) : 1;
  svg.setAttribute("width", scale * size.width);
  svg.setAttribute("height", scale * size.height);
  svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  const edges = drawn("g", { role: "none" }, ...nodes.slice(1).map((node) => edge(node, maxOrder)));
  svg.replaceChildren(edges, drawn("g", { role: "none" }, ...nodes.map((node) => box(node, maxOrder, append))));
  rove(nodes.map((node) => node.group), nodes[0].group);
  canvas.scrollTo(0, Math.max(0, scale * nodes[0].y - canvas.clientHeight / 2));
  if (hadFocus) focusTree();
}

export const focusTree = () => svg.querySelector('[tabindex="0"]')?.focus();

function rooted(answer) {
  const context = answer.tokens.slice(answer.tokens.length - Math.max(1, answer.matched_order));
  const label = context.flatMap((token) => pieces(token));
  const node = { step: null, parent: null, children: [], depth: 0, share: null, said: "", label };
  let length = label.reduce((sum, [piece]) => sum + [...piece].length, 0);
  while (length > LONGEST && node.label.length) {
    const [piece, isGlyph] = node.label[0];
    const left = [...piece].slice(length - LONGEST);
    length -= [...piece].length - left.length;
    node.label = left.length ? [["…", true], [left.join(""), isGlyph], ...node.label.slice(1)] : node.label.slice(1);
    if (left.length) break;
  }
  if (!node.label.length) node.label = [["start", true]];
  node.width = widthOf(node);
  return node;
}

function widthOf(node) {
  pen.font = MONO;
  const text = pen.measureText(node.label.map(([piece]) => piece).join("")).width;
  pen.font = SANS;
  return 2 * PAD + text + (node.said ? 8 + pen.measureText(node.said).width : 0);
}

function arrange(root) {
  const widths = [];
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  const lefts = widths.map((_, depth) => widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, MARGIN));
  let rows = 0;
  (function position(node) {
    node.x = lefts[node.depth];
    node.children.forEach(position);
    const [first, last] = [node.children[0], node.children[node.children.length - 1]];
    node.y = first ? (first.y + last.y) / 2 : MARGIN + HEIGHT / 2 + ROW * rows++;
  })(root);
  return { width: lefts[lefts.length - 1] + widths[widths.length - 1] + MARGIN, height: 2 * MARGIN + HEIGHT + ROW * (rows - 1) };
}

function edge(node, maxOrder) {
  const from = node.parent, start = from.x + from.width, bend = (node.x - start) / 2;
  node.edge = drawn("path", {
    class: "edge",
    d: `M${start} ${from.y}C${start + bend} ${from.y} ${node.x - bend} ${node.y} ${node.x} ${node.y}`,
    "stroke-width": 1 + 9 * (node.share ?? 0),
  });
  node.edge.style.stroke = colour(node.step.order, maxOrder);
  return node.edge;
}

function box(node, maxOrder, append) {
  const group = drawn("g", {
    class: node.parent ? "step" : "step root",
    transform: `translate(${node.x} ${node.y})`,
    role: "treeitem",
    "aria-label": node.parent ? said(node) : "end of the text",
    "aria-level": node.depth + 1,
    ...(node.children.length ? { "aria-expanded": true } : {}),
  });
  const frame = drawn("rect", { class: "box", y: -HEIGHT / 2, width: node.width, height: HEIGHT, rx: 7 });
  if (node.parent) frame.style.stroke = colour(node.step.order, maxOrder);
  group.append(frame, drawn("text", { x: PAD },
    ...node.label.map(([piece, isGlyph]) => drawn("tspan", isGlyph ? { class: "glyph" } : {}, piece))));
  if (node.said) {
    group.append(drawn("text", { class: "share", x: node.width - PAD, "text-anchor": "end" }, node.said));
  }
  group.addEventListener("click", () => append(line(node).map((each) => each.step.id)));
  for (const event of ["pointerenter", "focus"]) group.addEventListener(event, () => describe(node));
  node.group = group;
  return group;
}

const line = (node) => (node.parent ? [...line(node.parent), node] : []);

function said(node) {
  const { step } = node;
  const known = step.order ? `order ${step.order}, ${counted(step.count, "time")}` : "from the text itself";
  return [spoken(step), ...(node.said ? [node.said] : []), known].join(", ");
}

function describe(node) {
  svg.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
  for (const each of line(node)) [each.group, each.edge].forEach((element) => element.classList.add("lit"));
  if (!node.parent) {
    told.textContent = snapshot ? "The end of the text." : "The end of the text. Choose a node to append the path to it.";
    return;
  }
  const { step } = node;
  const path = html("span", {}, ...line(node).map((each) => chip(each.step)));
  const facts = [
    ...(step.path_probability === null ? [] : [`path ${percent(step.path_probability)}`]),
    step.order ? `order ${step.order}: ${whole(step.count)}×, ${percent(step.probability)} of its successors`
      : "no order of the graph: from the text itself",
  ];
  told.replaceChildren(path, ` ${facts.join(" · ")}`);
}

function legend(maxOrder) {
  const entries = Array.from({ length: maxOrder + 1 }, (_, order) => {
    const mark = html("i");
    mark.style.setProperty("--mark", colour(order, maxOrder));
    return html("span", {}, mark, order ? String(order) : "the text itself");
  });
  byId("legend").replaceChildren("Longest order that knows the token:", ...entries.slice(1), entries[0]);
}

// Not on the picture itself: what listens for focus there is taken for something that can have it.
canvas.addEventListener("focusin", (event) => {
  const group = event.target.closest(".step");
  if (group) rove(nodes.map((node) => node.group), group);
});

canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const node = nodes.find((each) => each.group === event.target.closest(".step"));
  if (!node) return;
  const order = [];
  (function walk(each) {
    order.push(each);
    each.children.forEach(walk);
  })(nodes[0]);
  const at = order.indexOf(node);
  const target = {
    ArrowDown: order[at + 1], ArrowUp: order[at - 1], ArrowRight: node.children[0], ArrowLeft: node.parent,
    Home: order[0], End: order[order.length - 1],
  }[event.key];
  if (event.key === "Enter" || event.key === " ") node.group.dispatchEvent(new MouseEvent("click"));
  else if (!["ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  target?.group.focus();
});
