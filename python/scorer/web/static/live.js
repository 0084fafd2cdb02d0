// Keeps a page current while it is visible. A page with an event stream waits for the next event by a long poll
// and is then requested again. Other pages are requested again at an interval, which grows while nothing
// changes. If nothing has changed, the response has no body (304). Otherwise the marked parts that differ are
// replaced, except for parts in which the user types or has opened a form.
"use strict";
(() => {
  const every = Number(document.body.dataset.refresh || 0);
  const events = document.body.dataset.events;
  const patience = 4000; // Milliseconds without a response until the page reports that the platform does not respond.
  const retry = 5000;
  const slowest = 30000;
  const wait = 25; // Seconds of a long poll.
  // The response to a rejected form has a path that only accepts forms. The page's own path can be requested.
  if (document.body.dataset.page) history.replaceState(history.state, "", document.body.dataset.page);
  const away = document.getElementById("away");
  let pause = every;
  let since = null;
  let tag = "";
  let timer = 0;

  const busy = (part) =>
    part.contains(document.activeElement) && document.activeElement !== document.body
      ? document.activeElement.matches("input, textarea, select, button, summary")
      : part.querySelector("details.action[open], details.confirm[open]") !== null;

  const swap = (fresh) => {
    let left = false;
    local(fresh);
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || part.innerHTML === other.innerHTML) continue;
      if (busy(part)) {
        left = true;
        continue;
      }
      const held = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
      part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true)));
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      if (held) part.querySelector(`[href="${CSS.escape(held)}"]`)?.focus();
    }
    // A part that was not replaced is compared again, so the next response must have a body.
    if (left) tag = "";
    pause = left ? every : Number(fresh.body.dataset.refresh || 0);
  };

  const tell = (text, tone) => {
    if (away.textContent === text) return;
    away.textContent = text;
    away.className = `banner ${tone}`;
    away.hidden = !text;
  };
  const lost = () => {
    since ??= new Date().toISOString().slice(11, 19);
    tell(`The platform has not answered since ${since} UTC. The page shows the last known state and retries every few seconds.`, "bad");
  };
  const back = () => {
    if (!since) return;
    const from = since;
    since = null;
    tell(`The platform responds again; it had not responded since ${from} UTC. The page is current.`, "good");
    setTimeout(() => since || tell("", ""), 15000);
  };

  const refresh = async () => {
    clearTimeout(timer);
    try {
      const answer = await fetch(location.href, {
        headers: { Accept: "text/html", ...(tag && { "If-None-Match": tag }) },
        cache: "no-store",
        signal: AbortSignal.timeout(patience),
      });
      if (new URL(answer.url).pathname === "/login") return location.reload();
      if (answer.status >= 502) throw new Error(answer.statusText);
      if (answer.status === 304) pause = Math.min(pause * 2, Math.max(every, slowest));
      else if (answer.ok) {
        tag = answer.headers.get("ETag") || "";
        swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
      back();
    } catch {
      lost();
      pause = Math.min(pause || retry, retry);
    }
    later();
  };
  const later = () => {
    clearTimeout(timer);
    if (pause) timer = setTimeout(() => document.hidden || refresh(), pause);
  };

  const listen = async (after) => {
    while (events) {
      if (document.hidden) {
        await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
        continue;
      }
      const hidden = new AbortController();
      const hide = () => hidden.abort();
      document.addEventListener("visibilitychange", hide, { once: true });
      try {
        const answer = await fetch(`${events}?after=${after}&wait=${wait}`, {
          cache: "no-store",
          signal: AbortSignal.any([hidden.signal, AbortSignal.timeout(wait * 1000 + patience)]),
        });
        if (answer.status === 401) return location.reload();
        if (!answer.ok) throw new Error(answer.statusText);
        const found = await answer.json();
        if (found.next !== after || since) await refresh();
        after = found.next;
        if (found.is_final) return;
      } catch {
        if (!hidden.signal.aborted) {
          lost();
          await new Promise((done) => setTimeout(done, retry));
        }
      }
      document.removeEventListener("visibilitychange", hide);
    }
  };

  // A page that becomes visible again is refreshed immediately.
  document.addEventListener("visibilitychange", () => document.hidden || (every && refresh()));
  later();
  listen(Number(document.body.dataset.after || 0));

  // On a narrow screen a button opens the navigation.
  const menu = document.getElementById("menu");
  menu?.addEventListener("click", () =>
    menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")),
  );

  // A select element that shows only the parts of its selected option.
  for (const choice of document.querySelectorAll("[data-shows]")) {
    const show = () => {
      for (const part of document.querySelectorAll(`[data-shown-for="${choice.dataset.shows}"]`))
        part.hidden = part.dataset.value !== choice.value;
    };
    choice.addEventListener("change", show);
    show();
  }

  // A second click while the request is in progress does not send the form again.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "yes";
    setTimeout(() => delete form.dataset.sent, 4000);
    // A response that takes longer than 400 ms is announced. An upload is announced immediately, with its size.
    const file = form.querySelector('input[type="file"]')?.files[0];
    setTimeout(() => busyWith(form, event.submitter, file), file ? 0 : 400);
  });
  const busyWith = (form, button, file) => {
    form.setAttribute("aria-busy", "true");
    button?.classList.add("busy");
    const said = document.createElement("p");
    said.className = "help sending";
    said.setAttribute("role", "status");
    form.append(said);
    said.textContent = file
      ? `Uploading ${file.name} (${(file.size / 1e6).toFixed(1)} MB). The platform verifies the file before it responds.`
      : "Waiting for the platform to respond.";
  };
  // A page that the browser restores from its cache has no request in progress.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    for (const one of document.querySelectorAll(".sending")) one.remove();
    for (const one of document.querySelectorAll("form[aria-busy]")) one.removeAttribute("aria-busy");
    for (const one of document.querySelectorAll("button.busy")) one.classList.remove("busy");
  });

  // Times are UTC. The title of each time is the local time, and the end of the page names the time zone.
  const zone = Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
  const local = (root) => {
    for (const one of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      one.dataset.local = "yes";
      one.title = `${one.title}, ${at.toLocaleString()} local time`;
    }
  };
  const clock = document.getElementById("clock");
  if (clock && new Date().getTimezoneOffset() !== 0) {
    const name = zone.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value || "";
    const minutes = -new Date().getTimezoneOffset();
    const sign = minutes < 0 ? "−" : "+";
    const hours = `${Math.floor(Math.abs(minutes) / 60)}:${String(Math.abs(minutes) % 60).padStart(2, "0")}`;
    clock.textContent = ` Your time zone is UTC${sign}${hours} (${name}); point at a time to see it in your time zone.`;
  }
  local(document);
})();
