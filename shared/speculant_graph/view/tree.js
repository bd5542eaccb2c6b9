// The tree: which branches are open, where everything is, and how it is drawn.

let numSteps = 0;

function grown(step, parent, place) {
  const node = { step, parent, place, depth: parent ? parent.depth + 1 : 0, open: false, number: numSteps++ };
  node.label = parent ? pieces(step.text, LONGEST) : [[rootLabel(), false]];
  node.share = parent ? percent(step.probability) : "";
  node.width = 2 * PAD + widthOf(node.label.map((piece) => piece[0]).join(""), MONO)
    + (node.share ? 8 + widthOf(node.share, SANS) : 0);
  node.children = (step.children ?? []).map((child, index) => grown(child, node, index));
  return node;
}

function rootLabel() {
  if (!around.context.length) return "anywhere";
  const text = around.context.map((token) => token.text).join("");
  const characters = [...text];
  return (characters.length > LONGEST ? "…" : "") + shown(characters.slice(-LONGEST).join(""));
}

const root = grown({ children: around.steps }, null, 0);
const every = [];
(function collect(node) {
  every.push(node);
  node.children.forEach(collect);
})(root);

/** Open the likeliest branches as long as the rows fit. */
function openLikeliest() {
  root.open = true;
  let rows = Math.max(1, root.children.length);
  const most = Math.max(9, Math.floor((canvas.clientHeight - TOP - BOTTOM) / ROW));
  const inner = every.filter((node) => node.parent && node.children.length);
  inner.sort((a, b) => b.step.path_probability - a.step.path_probability || a.number - b.number);
  for (const node of inner) {
    if (!node.parent.open || rows + node.children.length - 1 > most) continue;
    node.open = true;
    rows += node.children.length - 1;
  }
}

const visible = (node) => [node, ...(node.open ? node.children.flatMap(visible) : [])];

function place() {
  const widths = [];
  const nodes = visible(root);
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  const columns = widths.map((_, depth) => widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  let row = 0;
  (function settle(node) {
    node.x = columns[node.depth];
    if (node.open && node.children.length) {
      node.children.forEach(settle);
      node.y = (node.children[0].y + node.children[node.children.length - 1].y) / 2;
    } else {
      node.y = ROW * row++;
    }
  })(root);
  return nodes;
}

const scene = drawn("g", { role: "none" });
const edges = drawn("g", { role: "none" });
const steps = drawn("g", { role: "none" });
scene.append(edges, steps);
svg.append(scene);
let current = root;
let nodes = [];

function label(node) {
  const step = node.step;
  if (!node.parent) return around.context.length ? `after ${shown(rootLabel())}` : "anywhere in the text";
  return `${shown(step.text)}, ${percent(step.probability)}, ${counted(step.count, "time")}, order ${step.order}`;
}

function drawStep(node) {
  const inner = node.children.length > 0;
  const group = drawn("g", {
    class: `step${inner ? " inner" : ""}${node.parent ? "" : " root"}`,
    transform: `translate(${node.x} ${node.y})`,
    role: "treeitem",
    tabindex: node === current ? 0 : -1,
    "aria-label": label(node),
    "aria-level": node.depth + 1,
    "aria-posinset": node.place + 1,
    "aria-setsize": node.parent ? node.parent.children.length : 1,
  });
  if (inner) group.setAttribute("aria-expanded", node.open);
  const box = drawn("rect", { class: "box", y: -HEIGHT / 2, width: node.width, height: HEIGHT, rx: 7 });
  if (node.parent) box.style.stroke = colour(node.step.order);
  const text = drawn("text", { x: PAD },
    ...node.label.map(([piece, isGlyph]) => drawn("tspan", isGlyph ? { class: "glyph" } : {}, piece)));
  group.append(box, text);
  if (node.share) {
    const x = node.width - PAD - widthOf(node.share, SANS);
    group.append(drawn("text", { class: "share", x }, node.share));
  }
  if (inner) {
    const x = node.width + KNOB + 2;
    group.append(
      drawn("circle", { class: "knob", cx: x, r: KNOB }),
      drawn("text", { class: "sign", x, y: 0.5 }, node.open ? "−" : "+"),
    );
  }
  group.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(node));
  group.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  group.addEventListener("focus", () => {
    makeCurrent(node);
    if (group.matches(":focus-visible")) show(node);
  });
  group.addEventListener("blur", hide);
  node.group = group;
  return group;
}

function drawEdge(node) {
  const from = node.parent;
  const start = from.x + from.width + 2 * KNOB + 4;
  const bend = (node.x - start) / 2;
  const path = drawn("path", {
    class: "edge",
    d: `M${start} ${from.y}C${start + bend} ${from.y} ${node.x - bend} ${node.y} ${node.x} ${node.y}`,
    "stroke-width": 1 + 9 * node.step.probability,
  });
  path.style.stroke = colour(node.step.order);
  node.edge = path;
  return path;
}

function draw() {
  nodes = place();
  if (!nodes.includes(current)) current = root;
  edges.replaceChildren(...nodes.filter((node) => node.parent).map(drawEdge));
  steps.replaceChildren(...nodes.map(drawStep));
}

/** Open or close a branch; the node stays where it is on the screen, unless its children would be beyond the edge. */
function toggle(node, isOpen = !node.open) {
  if (!node.children.length || node.open === isOpen) return;
  const { x, y } = node;
  node.open = isOpen;
  hide();
  draw();
  look.x += (x - node.x) * look.scale;
  look.y += (y - node.y) * look.scale;
  if (isOpen) {
    const ends = node.children.map((child) => child.x + child.width + 2 * KNOB);
    const beyond = look.x + Math.max(...ends) * look.scale + 16 - canvas.clientWidth;
    const room = look.x + node.x * look.scale - 16;
    look.x -= Math.max(0, Math.min(beyond, room));
  }
  applyLook();
}
