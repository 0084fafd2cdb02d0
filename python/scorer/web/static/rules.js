// The editor of rules: line numbers, marked problems, completion of names, and checks while the user types.
"use strict";
(() => {
  const editor = document.querySelector("[data-editor]");
  const area = editor?.querySelector("textarea");
  if (!area) return;
  const pause = 400; // Milliseconds without typing until the rules are checked.
  const shown = 12; // Suggestions.
  const listed = 50; // Problems.
  const names = JSON.parse(document.getElementById("rule-names").textContent);
  const problems = document.getElementById("problems");

  const add = (tag, parent, values = {}) => {
    const made = Object.assign(document.createElement(tag), values);
    parent.append(made);
    return made;
  };
  const gutter = document.createElement("pre");
  const marks = document.createElement("pre");
  gutter.className = "gutter";
  marks.className = "marks";
  for (const one of [gutter, marks]) one.setAttribute("aria-hidden", "true");
  area.before(gutter, marks);
  editor.classList.add("ready");

  // --- lines and marks ---

  // The server counts characters, and the text of a page has UTF-16 units.
  const units = (text, characters) => Array.from(text).slice(0, characters).join("").length;
  const place = (text, line, column) => {
    let start = 0;
    for (let at = 1; at < line; at++) {
      const next = text.indexOf("\n", start);
      if (next < 0) break;
      start = next + 1;
    }
    const end = text.indexOf("\n", start);
    return start + units(text.slice(start, end < 0 ? text.length : end), column - 1);
  };

  let found = [];
  const draw = () => {
    const text = area.value;
    const wrong = new Set(found.map((one) => one.line));
    const count = text.split("\n").length;
    gutter.replaceChildren();
    for (let line = 1; line <= count; line++)
      add("span", gutter, { textContent: `${line}\n`, className: wrong.has(line) ? "wrong" : "" });
    marks.replaceChildren();
    let done = 0;
    for (const one of found) {
      const begin = place(text, one.line, one.column);
      if (begin < done) continue;
      const word = /^(?:[\w.]+|"[^"\n]*"?|[^\n])/.exec(text.slice(begin))?.[0] ?? "";
      marks.append(text.slice(done, begin));
      add("mark", marks, { textContent: word });
      done = begin + word.length;
    }
    marks.append(text.slice(done) + "\n");
    follow();
  };
  const follow = () => {
    gutter.scrollTop = marks.scrollTop = area.scrollTop;
    marks.scrollLeft = area.scrollLeft;
  };
  area.addEventListener("scroll", () => {
    follow();
    close();
  });

  const show = (one) => {
    const at = place(area.value, one.line, one.column);
    area.focus();
    area.setSelectionRange(at, at);
    area.scrollTop = Math.max(0, (one.line - 4) * parseFloat(getComputedStyle(area).lineHeight));
  };
  const report = (answer) => {
    found = answer.problems;
    problems.replaceChildren();
    if (answer.ok) add("p", problems, { textContent: `No problems in ${answer.rules.length} rules.` });
    else {
      const list = add("ol", problems);
      for (const one of answer.problems.slice(0, listed)) {
        const button = add("button", add("li", list), { type: "button", className: "problem" });
        if (one.rule) add("code", button, { textContent: one.rule });
        button.append(
          `${one.rule ? ", " : ""}line ${one.line}, column ${one.column}: ${one.problem}${one.remedy ? `; ${one.remedy}` : ""}`,
        );
        button.addEventListener("click", () => show(one));
      }
      if (answer.problems.length > listed)
        add("p", problems, { textContent: `And ${answer.problems.length - listed} more.` });
    }
    area.setAttribute("aria-invalid", String(!answer.ok));
    draw();
  };
  const say = (text) => {
    problems.replaceChildren();
    add("p", problems, { textContent: text });
  };

  // --- checks ---

  let timer = 0;
  let asking = null;
  const check = async () => {
    asking?.abort();
    const own = (asking = new AbortController());
    const text = area.value;
    try {
      const answer = await fetch(editor.dataset.check, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRF-Token": editor.dataset.csrf },
        body: JSON.stringify({ text }),
        signal: AbortSignal.any([own.signal, AbortSignal.timeout(20000)]),
      });
      const body = await answer.json();
      if (area.value !== text) return;
      if (answer.ok) {
        report(body);
        area.dispatchEvent(new CustomEvent("rules:checked", { detail: { text, ...body } }));
      } else if (answer.status === 429) {
        say(body.detail);
        later(1000 * Number(answer.headers.get("Retry-After") || 2));
      } else say(`The rules were not checked: ${body.detail}`);
    } catch {
      if (!own.signal.aborted) say("The platform does not answer, so the rules were not checked. Press Check the rules.");
    }
  };
  const later = (wait = pause) => {
    clearTimeout(timer);
    timer = setTimeout(check, wait);
  };

  // --- completion ---

  const list = document.createElement("ul");
  list.id = "suggestions";
  list.className = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Names");
  list.hidden = true;
  editor.append(list);
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  let choices = [];
  let chosen = 0;
  let word = "";

  const close = () => {
    list.hidden = true;
    choices = [];
    area.removeAttribute("aria-activedescendant");
  };
  const select = (number) => {
    chosen = (number + choices.length) % choices.length;
    [...list.children].forEach((one, at) => one.setAttribute("aria-selected", String(at === chosen)));
    list.children[chosen].scrollIntoView({ block: "nearest" });
    area.setAttribute("aria-activedescendant", list.children[chosen].id);
  };
  const accept = () => {
    const name = choices[chosen].name;
    const from = area.selectionStart - word.length;
    area.setRangeText(name, from, area.selectionEnd, "end");
    close();
    area.dispatchEvent(new Event("input"));
    close();
  };
  const candidates = (before) => {
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const start = line.slice(0, line.length - word.length);
    if (/^\s*$/.test(start)) return names.filter((one) => one.kind === "key");
    if (/list\(\\?"$/.test(start)) return names.filter((one) => one.kind === "list");
    if (/\\"$|'[^']*"$/.test(start) || /^\s*(decision|remove|keep)\s*=.*"$/.test(start)) {
      const decides = /^\s*decision/.test(start);
      const values = names
        .filter((one) => (decides ? one.kind === "decision" : start.includes(one.name.replace("action.", ""))))
        .flatMap((one) =>
          one.kind === "decision" ? [one] : one.values.map((name) => ({ name, kind: "value", type: `of ${one.name}` })),
        );
      return values;
    }
    return names.filter((one) => !["key", "list", "decision"].includes(one.kind));
  };
  const suggest = (wanted) => {
    close();
    const before = area.value.slice(0, area.selectionStart);
    word = /[A-Za-z_][\w.]*$/.exec(before)?.[0] ?? "";
    if (!wanted && word.length < 2) return;
    const low = word.toLowerCase();
    const fits = candidates(before).filter((one) => one.name.toLowerCase().includes(low) && one.name !== word);
    fits.sort((one, other) => other.name.toLowerCase().startsWith(low) - one.name.toLowerCase().startsWith(low));
    choices = fits.slice(0, shown);
    if (!choices.length) return;
    list.replaceChildren();
    choices.forEach((one, at) => {
      const item = add("li", list, { id: `suggestion-${at}` });
      item.setAttribute("role", "option");
      add("code", item, { textContent: one.name });
      item.append(" ");
      add("span", item, { textContent: one.type, className: "muted" });
      item.addEventListener("mousedown", (event) => {
        event.preventDefault();
        chosen = at;
        accept();
      });
    });
    const look = getComputedStyle(area);
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = look.font;
    const column = before.length - before.lastIndexOf("\n") - 1 - word.length;
    const lines = before.split("\n").length;
    const top = area.offsetTop + lines * parseFloat(look.lineHeight) + parseFloat(look.paddingTop) - area.scrollTop;
    const left = area.offsetLeft + parseFloat(look.paddingLeft) + column * pen.measureText("0").width - area.scrollLeft;
    list.hidden = false;
    list.style.top = `${Math.min(top, area.offsetTop + area.offsetHeight)}px`;
    list.style.left = `${Math.max(0, Math.min(left, editor.clientWidth - list.offsetWidth))}px`;
    select(0);
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      suggest(true);
    } else if (choices.length) {
      const keys = {
        ArrowDown: () => select(chosen + 1),
        ArrowUp: () => select(chosen - 1),
        Enter: accept,
        Tab: accept,
        Escape: close,
      };
      if (keys[event.key] && !event.shiftKey) {
        event.preventDefault();
        keys[event.key]();
      }
    }
  });
  area.addEventListener("blur", close);
  area.addEventListener("input", (event) => {
    found = [];
    draw();
    if (event.inputType === "insertText") suggest(false);
    else close();
    later();
  });
  draw();
  if (area.value.trim()) check();
})();
