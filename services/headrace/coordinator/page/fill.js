// Puts new content into the page and leaves alone what is equal, so that the focus, marked text and tooltips stay where they are.

const HOLD_MS = 10000;
let markedMs = 0;
document.addEventListener("selectionchange", () => (markedMs = Date.now()));

// Make `parent` hold these nodes and texts. A child with data-key goes on as the one that had the same key, wherever it was.
export function fill(parent, ...wanted) {
  const keyed = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let at = parent.firstChild;
  for (const one of wanted) {
    const fresh = typeof one === "string" ? document.createTextNode(one) : one;
    const key = fresh.dataset?.key;
    const kept = key ? keyed.get(key) : at && !at.dataset?.key && at.nodeName === fresh.nodeName ? at : null;
    if (kept) patch(kept, fresh);
    if (kept && kept === at) at = at.nextSibling;
    else parent.insertBefore(kept ?? fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(kept, fresh) {
  if (kept.nodeType === Node.TEXT_NODE) {
    if (kept.data !== fresh.data && !held(kept)) kept.data = fresh.data;
    return;
  }
  for (const { name } of [...kept.attributes]) if (!fresh.hasAttribute(name)) kept.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (kept.getAttribute(name) === value) continue;
    // As an attribute the page's own policy would refuse it.
    if (name === "style") kept.style.cssText = value;
    else kept.setAttribute(name, value);
  }
  fill(kept, ...fresh.childNodes);
}

// Somebody marks this text to copy it: it waits for some seconds, and nothing else does.
function held(text) {
  const marked = getSelection();
  return !marked.isCollapsed && Date.now() - markedMs < HOLD_MS && marked.containsNode(text, true);
}
