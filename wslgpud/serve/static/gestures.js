// Panning and zooming a chart by mouse, wheel and touch.

/** Shift and drag, or a finger: pan; two fingers: zoom; a wheel with Ctrl or sideways: both. */
export function gestures(u, { range, zoom, pan }) {
  const fingers = new Map();
  const { over } = u;
  let begun = null;
  const begin = () => (begun = { from: range().from, to: range().to, at: [...fingers.values()] });
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && !event.shiftKey) return;
    fingers.set(event.pointerId, event.clientX);
    over.setPointerCapture(event.pointerId);
    begin();
  });
  over.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event.clientX);
    const now = [...fingers.values()];
    const perPixel = (begun.to - begun.from) / over.clientWidth;
    const moved = (now[0] - begun.at[0]) * perPixel;
    if (now.length === 1) return Math.abs(moved) > 3 * perPixel && zoom(begun.from - moved, begun.to - moved);
    const [was, is] = [begun.at, now].map(([a, b]) => Math.max(20, Math.abs(a - b)));
    const half = ((begun.to - begun.from) / 2) * (was / is);
    const middle = (begun.from + begun.to) / 2;
    zoom(middle - half, middle + half);
  });
  for (const end of ["pointerup", "pointercancel"]) over.addEventListener(end, (event) => { fingers.delete(event.pointerId); begin(); });
  // uPlot would begin to select.
  over.addEventListener("mousedown", (event) => { if (event.shiftKey) event.stopImmediatePropagation(); }, { capture: true });
  over.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !sideways) return;
    event.preventDefault();
    if (sideways) return pan(event.deltaX / over.clientWidth);
    const factor = Math.exp(event.deltaY / 300);
    const at = u.posToVal(event.offsetX, "x");
    zoom(at - (at - range().from) * factor, at + (range().to - at) * factor);
  }, { passive: false });
}
