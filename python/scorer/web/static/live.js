// Keeps a page true while it is looked at: asks for it again and puts in the marked parts that have changed.
// A part in which somebody is typing, or has opened something, is left alone until he is done.
"use strict";
(() => {
  const every = Number(document.body.dataset.refresh || 0);
  let pause = every;

  const busy = (part) =>
    part.contains(document.activeElement) && document.activeElement !== document.body
      ? document.activeElement.matches("input, textarea, select, button, summary")
      : part.querySelector("details.action[open]") !== null;

  const swap = (fresh) => {
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || part.innerHTML === other.innerHTML || busy(part)) continue;
      const held = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
      part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true)));
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      if (held) part.querySelector(`[href="${CSS.escape(held)}"]`)?.focus();
    }
    if (!fresh.body.dataset.refresh && !document.querySelector("details.action[open]")) pause = 0;
  };

  const look = async () => {
    if (!pause) return;
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (new URL(answer.url).pathname === "/login") return location.reload();
        if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
        pause = pause && every;
      } catch {
        pause = Math.min(pause * 2, 60000); // The platform is away; it may come back.
      }
    }
    setTimeout(look, pause);
  };
  if (every) setTimeout(look, every);

  // A choice that shows what belongs to it alone.
  for (const choice of document.querySelectorAll("[data-shows]")) {
    const show = () => {
      for (const part of document.querySelectorAll(`[data-shown-for="${choice.dataset.shows}"]`))
        part.hidden = part.dataset.value !== choice.value;
    };
    choice.addEventListener("change", show);
    show();
  }

  // One click, one request.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "yes";
    setTimeout(() => delete form.dataset.sent, 4000);
  });
})();
