// What happens when somebody points, presses, drags or types; and the beginning.

function path(node) {
  const found = [];
  for (let at = node; at; at = at.parent) found.unshift(at);
  return found;
}

function show(node) {
  hide();
  const line = path(node);
  line.forEach((at) => {
    at.group.classList.add("lit");
    at.edge?.classList.add("lit");
  });
  if (node.parent) describeStep(node, line);
  else describeRoot();
  card.hidden = false;
  const bounds = canvas.getBoundingClientRect(), box = node.group.getBoundingClientRect();
  const most = { x: bounds.width - card.offsetWidth - 8, y: bounds.height - card.offsetHeight - 8 };
  const beside = box.right - bounds.left + 12;
  let left = beside, top = (box.top + box.bottom - card.offsetHeight) / 2 - bounds.top;
  if (beside > most.x) {  // no room beside it, which would leave its siblings in sight
    const below = box.bottom - bounds.top + 10, above = box.top - bounds.top - card.offsetHeight - 10;
    left = Math.min(box.left - bounds.left, most.x);
    top = below < most.y || above < 8 ? below : above;
  }
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${Math.max(8, Math.min(top, most.y))}px`;
}

function describeStep(node, line) {
  const step = node.step;
  const facts = html("dl");
  const rows = {
    "Token id": step.token_id,
    Count: whole(step.count),
    Probability: step.probability.toPrecision(4),
    Order: step.order || "none: share of all tokens",
    "Path probability": step.path_probability.toPrecision(4),
    "Different next tokens": whole(step.num_successors),
  };
  for (const [name, fact] of Object.entries(rows)) facts.append(html("dt", "", name), html("dd", "", String(fact)));
  const so = line.slice(1).flatMap((at) => pieces(at.step.text));
  card.replaceChildren(chip(step.text), facts,
    html("p", "path", ...so.map(([piece, isGlyph]) => html("span", isGlyph ? "glyph" : "", piece))));
}

function describeRoot() {
  const facts = html("dl");
  const rows = { "Order of the context": around.context.length || "none", "Different next tokens": whole(around.num_successors) };
  for (const [name, fact] of Object.entries(rows)) facts.append(html("dt", "", name), html("dd", "", String(fact)));
  card.replaceChildren(chip(around.context.map((token) => token.text).join("") || "anywhere in the text"), facts);
}

function hide() {
  card.hidden = true;
  document.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
}

function makeCurrent(node) {
  current.group?.setAttribute("tabindex", -1);
  current = node;
  current.group.setAttribute("tabindex", 0);
}

function focus(node) {
  if (!node) return;
  makeCurrent(node);
  const left = look.x + node.x * look.scale, top = look.y + node.y * look.scale, margin = 40;
  const right = left + (node.width + 2 * KNOB) * look.scale;
  if (right > canvas.clientWidth - margin) look.x -= right - canvas.clientWidth + margin;
  if (left < margin) look.x += margin - left;
  if (top < margin) look.y += margin - top;
  if (top > canvas.clientHeight - margin) look.y -= top - canvas.clientHeight + margin;
  applyLook();
  node.group.focus({ preventScroll: true });
  show(node);
}

// --- pan and zoom

const look = { x: 0, y: 0, scale: 1 };

const applyLook = () => scene.setAttribute("transform", `translate(${look.x} ${look.y}) scale(${look.scale})`);

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(LARGEST, Math.max(SMALLEST, look.scale * factor));
  look.x = x - ((x - look.x) * scale) / look.scale;
  look.y = y - ((y - look.y) * scale) / look.scale;
  look.scale = scale;
  hide();
  applyLook();
}

/** Show all that is open, but no smaller than can be read: then the root and what is near it. */
function fit(smallest = SMALLEST) {
  const margin = 24;
  const right = Math.max(...nodes.map((node) => node.x + node.width + 2 * KNOB + 4));
  const ys = nodes.map((node) => node.y);
  const low = Math.min(...ys) - HEIGHT / 2, high = Math.max(...ys) + HEIGHT / 2;
  const width = canvas.clientWidth - 2 * margin, height = canvas.clientHeight - TOP - BOTTOM;
  const scale = Math.min(width / right, height / (high - low), 1.25);
  look.scale = Math.max(scale, smallest);
  look.x = margin + Math.max(0, (width - right * look.scale) / 2);
  const middle = (high - low) * look.scale <= height ? (low + high) / 2 : root.y;
  look.y = TOP + height / 2 - middle * look.scale;
  hide();
  applyLook();
}

const pointers = new Map();
let moved = 0, pressed = null;

svg.addEventListener("pointerdown", (event) => {
  pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  if (pointers.size > 1) return;
  moved = 0;
  const group = event.target.closest(".step");
  pressed = group && nodes.find((node) => node.group === group);
});
window.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const after = { x: event.clientX, y: event.clientY };
  moved += Math.abs(after.x - before.x) + Math.abs(after.y - before.y);
  if (moved > 5) {
    svg.classList.add("dragged");
    hide();
    look.x += (after.x - before.x) / pointers.size;
    look.y += (after.y - before.y) / pointers.size;
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const bounds = svg.getBoundingClientRect();
      const apart = (point) => Math.hypot(point.x - other.x, point.y - other.y) || 1;
      zoom(apart(after) / apart(before), (after.x + other.x) / 2 - bounds.left, (after.y + other.y) / 2 - bounds.top);
    }
    applyLook();
  }
  pointers.set(event.pointerId, after);
});
for (const end of ["pointerup", "pointercancel"]) {
  window.addEventListener(end, (event) => {
    if (!pointers.delete(event.pointerId) || pointers.size) return;
    svg.classList.remove("dragged");
    if (end === "pointerup" && moved <= 5 && pressed) {
      const node = pressed;
      makeCurrent(node);
      toggle(node);
      node.group.focus({ preventScroll: true });
      show(node);
    } else if (moved <= 5) {
      hide();
    }
    pressed = null;
  });
}
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const bounds = svg.getBoundingClientRect();
  const lines = event.deltaMode === 1 ? 16 : 1;
  zoom(Math.exp(-event.deltaY * lines * 0.0016), event.clientX - bounds.left, event.clientY - bounds.top);
}, { passive: false });

// --- keys and buttons

const keys = {
  ArrowDown: () => focus(nodes[nodes.indexOf(current) + 1]),
  ArrowUp: () => focus(nodes[nodes.indexOf(current) - 1]),
  Home: () => focus(root),
  End: () => focus(nodes[nodes.length - 1]),
  ArrowRight: () => {
    if (current.open) focus(current.children[0]);
    else turn(true);
  },
  ArrowLeft: () => {
    if (current.open && current.children.length) turn(false);
    else focus(current.parent);
  },
  Enter: () => turn(!current.open),
  " ": () => turn(!current.open),
  "+": () => zoom(1.25),
  "=": () => zoom(1.25),
  "-": () => zoom(0.8),
  0: () => fit(),
  Escape: hide,
};

function turn(isOpen) {
  toggle(current, isOpen);
  focus(current);
}

svg.addEventListener("keydown", (event) => {
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});

function turnAll(isOpen) {
  for (const node of every) node.open = node === root || (isOpen && node.children.length > 0);
  draw();
  fit(READABLE);
}

byId("zoom-in").addEventListener("click", () => zoom(1.25));
byId("zoom-out").addEventListener("click", () => zoom(0.8));
byId("fit").addEventListener("click", () => fit());
byId("expand").addEventListener("click", () => turnAll(true));
byId("collapse").addEventListener("click", () => turnAll(false));

describe();
tabulate();
openLikeliest();
draw();
fit(READABLE);
let width = canvas.clientWidth;
window.addEventListener("resize", () => {
  if (canvas.clientWidth !== width) fit(READABLE);  // a phone's address bar changes the height alone
  width = canvas.clientWidth;
});
