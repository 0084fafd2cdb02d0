// Keeps a page current while it is visible: requests it again and replaces the marked parts that have changed.
// A part in which the user types, or has opened something, is left alone.
"use strict";
(() => {
  const every = Number(document.body.dataset.refresh || 0);
  const patience = 4000; // A platform that has not answered for so long is reported as away.
  const retry = 5000;
  const away = document.getElementById("away");
  let pause = every;
  let since = null;

  const busy = (part) =>
    part.contains(document.activeElement) && document.activeElement !== document.body
      ? document.activeElement.matches("input, textarea, select, button, summary")
      : part.querySelector("details.action[open], details.confirm[open]") !== null;

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

  const tell = (text, tone) => {
    if (away.textContent === text) return;
    away.textContent = text;
    away.className = `banner ${tone}`;
    away.hidden = !text;
  };
  const lost = () => {
    since ??= new Date().toISOString().slice(11, 19);
    tell(`The platform has not answered since ${since} UTC. The page shows the state before; it retries every few seconds.`, "bad");
  };
  const back = () => {
    if (!since) return;
    const from = since;
    since = null;
    tell(`The platform answers again; it was away from ${from} UTC. The page is current.`, "good");
    setTimeout(() => since || tell("", ""), 15000);
  };

  const look = async () => {
    if (!pause) return;
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, {
          headers: { Accept: "text/html" },
          signal: AbortSignal.timeout(patience),
        });
        if (new URL(answer.url).pathname === "/login") return location.reload();
        if (answer.status >= 502) throw new Error(answer.statusText);
        if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
        back();
        pause = pause && every;
      } catch {
        lost();
        pause = Math.max(every, retry);
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
