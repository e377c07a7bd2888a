// Elements from data. Text only ever becomes text nodes: nothing here can turn a string into markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "rect", "circle"]);

/** Build an element. `on...` are handlers, `class` may be a list, null, undefined and false are left out. */
export function h(tag, props, ...children) {
  const element = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "class") element.setAttribute("class", [value].flat().filter(Boolean).join(" "));
    else if (name === "value") { element.value = value; element.setAttribute("value", value); }
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child.nodeType ? child : document.createTextNode(String(child)));
  }
}

const HANDLERS = ["onclick", "onchange", "oninput", "onkeydown", "ontoggle"];
const keyOf = (node) => node.nodeType === 1 && (node.getAttribute("data-key") || node.id || null);

/**
 * Replace the children of `old` by those in `next`, touching only differences: focus, selection, scrolling and
 * open details survive a new sample every second. An element with `data-keep` (a chart) keeps its content.
 */
export function show(old, ...next) {
  const fresh = document.createDocumentFragment();
  add(fresh, next);
  children(old, fresh);
}

function children(old, fresh) {
  const keyed = new Map();
  for (const node of old.childNodes) if (keyOf(node)) keyed.set(keyOf(node), node);
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : at;
    keyed.delete(key); // equal keys (programs of another namespace are all pid 0) still mean two elements
    if (found && !alike(found, wanted)) found = null;
    if (!found && !key && at && alike(at, wanted)) found = at;
    if (!found) {
      old.insertBefore(wanted, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else old.insertBefore(found, at);
    morph(found, wanted);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morph(old, fresh) {
  if (old.nodeType !== 1) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Details the reader has opened stay open.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  if (old.nodeName === "INPUT" || old.nodeName === "SELECT") {
    if (document.activeElement !== old && old.value !== fresh.value) old.value = fresh.value;
    if (old.checked !== fresh.checked) old.checked = fresh.checked;
  }
  if (!fresh.hasAttribute("data-keep")) children(old, fresh);
}
