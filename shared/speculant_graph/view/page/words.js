// Small things that every part of the page says or makes.

export const byId = (id) => document.getElementById(id);
export const whole = (number) => number.toLocaleString("en");
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

export function percent(share) {
  if (share >= 1) return "100%";
  if (share > 0.995) return ">99%";
  if (share >= 0.0995) return `${Math.round(100 * share)}%`;
  return share >= 0.0005 ? `${(100 * share).toFixed(1)}%` : "<0.1%";
}

let glyphs = {};

/** Take the signs that stand for characters which can't be seen. */
export const learnGlyphs = (table) => { glyphs = table; };

/** Split a token into [piece, stands for something else]; its id where its text is not known. */
export function pieces(token, longest = Infinity) {
  if (token.text === null) return [[`#${token.id}`, false]];
  const found = [];
  let number = 0;
  for (const character of token.text) {
    if (++number > longest) {
      found.push(["…", true]);
      break;
    }
    const glyph = glyphs[character];
    const last = found[found.length - 1];
    if (last && last[1] === (glyph !== undefined)) last[0] += glyph ?? character;
    else found.push([glyph ?? character, glyph !== undefined]);
  }
  return found.length ? found : [["∅", true]];
}

export const shown = (token, longest) => pieces(token, longest).map(([piece]) => piece).join("");

/** What a screen reader says of a token. */
export const spoken = (token) => (token.text === null ? `token ${token.id}` : token.text.trim() || `blank, token ${token.id}`);

export function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const chip = (token, className = "token") => html("span", { class: className, title: `id ${token.id}` },
  ...pieces(token).map(([piece, isGlyph]) => html("span", isGlyph ? { class: "glyph" } : {}, piece)));

/** The colour of a context's order, from --low over --middle to --high. */
export function colour(order, maxOrder) {
  if (!order) return "var(--unordered)";
  const share = maxOrder > 1 ? (200 * (order - 1)) / (maxOrder - 1) : 200;
  return share > 100
    ? `color-mix(in oklab, var(--high) ${Math.round(share - 100)}%, var(--middle))`
    : `color-mix(in oklab, var(--middle) ${Math.round(share)}%, var(--low))`;
}

/** Let one of several elements be reached by Tab, the others by arrow keys. */
export function rove(elements, current) {
  for (const element of elements) element.setAttribute("tabindex", element === current ? 0 : -1);
}
