// Dragging in the calendar: over free time books it; dragging a booking of the user moves it.
// The forms of the page offer the same operations.
"use strict";
(() => {
  const gantt = document.getElementById("gantt");
  if (!gantt) return;
  const words = document.getElementById("drag-words");
  const form = document.getElementById("drag-form");
  const [start, minutes, step] = [Date.parse(gantt.dataset.start), Number(gantt.dataset.minutes), Number(gantt.dataset.step)];
  const SVG = "http://www.w3.org/2000/svg";

  const at = (row, x) => {
    const box = row.getBoundingClientRect();
    return Math.min(1, Math.max(0, (x - box.left) / box.width)) * minutes;
  };
  const snap = (value) => Math.round(value / step) * step;
  const stamp = (value) => new Date(start + value * 60000).toISOString().slice(0, 16);
  const say = (value) => new Date(start + value * 60000).toUTCString().slice(0, 22);
  const rowAt = (x, y) => document.elementFromPoint(x, y)?.closest(".slot-row");

  let drag = null;

  gantt.addEventListener("pointerdown", (event) => {
    const row = event.target.closest(".slot-row");
    if (!row || event.button !== 0 || event.pointerType === "touch") return;
    const booking = event.target.closest("a");
    if (booking && !booking.dataset.change) return;
    const shade = document.createElementNS(SVG, "rect");
    shade.setAttribute("class", "draft");
    shade.setAttribute("y", "5");
    shade.setAttribute("height", "36");
    drag = { row, booking, shade, from: at(row, event.clientX), x: event.clientX, y: event.clientY, moved: false };
    if (booking) {
      drag.length = Number(booking.dataset.length);
      drag.hold = drag.from - (booking.querySelector("svg").x.baseVal.value / row.getBoundingClientRect().width) * minutes;
    }
    event.preventDefault();
  });

  addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 5) return;
    drag.moved = true;
    const over = rowAt(event.clientX, event.clientY);
    // A booking may change its slot, not its checkpoint.
    if (drag.booking && over?.dataset.checkpoint === drag.row.dataset.checkpoint) drag.row = over;
    const now = at(drag.row, event.clientX);
    if (drag.booking) [drag.begin, drag.end] = [snap(now - drag.hold), snap(now - drag.hold) + drag.length];
    else [drag.begin, drag.end] = [snap(Math.min(drag.from, now)), Math.max(snap(Math.max(drag.from, now)), snap(Math.min(drag.from, now)) + step)];
    drag.shade.setAttribute("x", `${(drag.begin / minutes) * 100}%`);
    drag.shade.setAttribute("width", `${((drag.end - drag.begin) / minutes) * 100}%`);
    drag.row.append(drag.shade);
    words.textContent = `${drag.row.dataset.checkpoint} slot ${drag.row.dataset.slot}: ${say(drag.begin)} to ${say(drag.end)} UTC`;
  });

  addEventListener("pointerup", () => {
    const done = drag;
    drag = null;
    if (!done) return;
    done.shade.remove();
    if (!done.moved) return;
    // Without this the browser would follow the link under the pointer.
    addEventListener("click", (event) => event.preventDefault(), { capture: true, once: true });
    const { checkpoint, slot } = done.row.dataset;
    if (done.booking) {
      form.elements.change.value = done.booking.dataset.change;
      form.elements.start.value = stamp(done.begin);
      form.elements.slot.value = slot;
      form.submit();
    } else {
      const query = new URLSearchParams({ checkpoint, slot, start: stamp(done.begin), minutes: done.end - done.begin });
      location.assign(`/changes/new?${query}`);
    }
  });

  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drag) {
      drag.shade.remove();
      drag = null;
    }
  });
})();
