// Decision tables as grids, which write into the text of the rules. The places of all cells come from each check.
"use strict";
(() => {
  const area = document.querySelector("[data-editor] textarea");
  const panel = document.getElementById("grids");
  const holder = panel?.querySelector("[data-grids]");
  if (!area || !holder) return;
  let tables = [];
  let current = "";
  let wanted = null; // The cell that gets the focus after the next check: [table, row, column].

  const add = (tag, parent, values = {}) => {
    const made = Object.assign(document.createElement(tag), values);
    parent.append(made);
    return made;
  };
  const quoted = (value) => JSON.stringify(value).replaceAll("\x7f", "\\u007f");
  const shown = (text) => {
    if (text.startsWith('"') && !text.startsWith('"""')) {
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
    }
    return text.startsWith("'") && !text.startsWith("'''") ? text.slice(1, -1) : text;
  };
  const isNumber = (text) => /^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text);
  // A number stays a number if it was one; everything else is a string.
  const written = (value, before) => (isNumber(value) && isNumber(before) ? value : quoted(value));

  const replace = (begin, end, text) => {
    area.value = area.value.slice(0, begin) + text + area.value.slice(end);
    current = area.value;
    // Places after the change move.
    const shift = text.length - (end - begin);
    const moved = (at) => (at >= end ? at + shift : at);
    for (const table of tables) {
      for (const key of ["inputs_at", "outputs_at", "rows_at"]) table[key] = table[key].map(moved);
      for (const row of table.rows) for (const cell of row) cell.at = moved(cell.at);
    }
    area.dispatchEvent(new Event("input"));
  };
  const array = (values) => `[${values.map(quoted).join(", ")}]`;
  const rowsText = (rows) => (rows.length ? `[\n${rows.map((row) => `  [${row.join(", ")}],\n`).join("")}]` : "[]");
  const texts = (table) => table.rows.map((row) => row.map((cell) => cell.text));
  // The arrays are replaced from the end of the text, so that the places of the others stay valid.
  const rewrite = (table, parts) => {
    const order = Object.entries(parts).sort((one, other) => table[`${other[0]}_at`][0] - table[`${one[0]}_at`][0]);
    for (const [key, text] of order) replace(...table[`${key}_at`], text);
    busy();
  };
  const busy = () => {
    holder.setAttribute("aria-busy", "true");
    for (const one of holder.querySelectorAll("input, button")) one.disabled = true;
  };

  const move = (event, table, row, column) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = event.key === "Enter" ? [1, 0] : event.altKey ? steps[event.key] : null;
    if (!step) return;
    event.preventDefault();
    const next = holder.querySelector(`[data-cell="${table} ${row + step[0]} ${column + step[1]}"]`);
    // Losing the focus is what writes a changed cell.
    if (next) next.focus();
    else event.target.blur();
  };
  const button = (parent, text, label, work) => {
    const made = add("button", parent, { type: "button", className: "quiet", textContent: text });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", work);
    return made;
  };

  const draw = (table, number) => {
    const part = add("section", holder);
    add("h3", part, { textContent: `${table.id} ` }).append(
      Object.assign(document.createElement("span"), { className: "muted", textContent: `hit ${table.hit}` }),
    );
    const scroll = add("div", part, { className: "scroll", tabIndex: 0 });
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Decision table ${table.id}`);
    const grid = add("table", scroll, { className: "grid" });
    add("caption", grid, { className: "sr", textContent: `Decision table ${table.id}` });
    const head = add("tr", add("thead", grid));
    add("th", head, { scope: "col", textContent: "Row" });
    const columns = [...table.inputs.map((name) => ["inputs", name]), ...table.outputs.map((name) => ["outputs", name])];
    columns.forEach(([key, name], at) => {
      const cell = add("th", head, { scope: "col", className: key });
      const place = key === "inputs" ? at : at - table.inputs.length;
      const input = add("input", cell, { value: name, size: Math.max(8, name.length) });
      input.setAttribute("aria-label", `${key === "inputs" ? "Input" : "Output"} ${place + 1} of ${table.id}`);
      input.dataset.cell = `${number} -1 ${at}`;
      input.addEventListener("keydown", (event) => move(event, number, -1, at));
      input.addEventListener("change", () => {
        wanted = [number, -1, at];
        rewrite(table, { [key]: array(table[key].map((one, other) => (other === place ? input.value : one))) });
      });
      if (table[key].length > 1)
        button(cell, "×", `Remove column ${name} of ${table.id}`, () => {
          wanted = [number, -1, Math.max(0, at - 1)];
          rewrite(table, {
            [key]: array(table[key].filter((_, other) => other !== place)),
            rows: rowsText(texts(table).map((row) => row.filter((_, other) => other !== at))),
          });
        });
    });
    add("th", head, { scope: "col", textContent: "Edit the row" });
    const body = add("tbody", grid);
    table.rows.forEach((row, at) => {
      const line = add("tr", body);
      add("th", line, { scope: "row", textContent: String(at + 1) });
      row.forEach((cell, column) => {
        const own = add("td", line);
        const value = shown(cell.text);
        const input = add("input", own, { value, size: Math.max(8, value.length) });
        input.setAttribute("aria-label", `${columns[column]?.[1] ?? "Cell"}, row ${at + 1} of ${table.id}`);
        input.dataset.cell = `${number} ${at} ${column}`;
        if (cell.problems.length) {
          const id = `wrong-${number}-${at}-${column}`;
          add("p", own, { id, className: "warning", textContent: cell.problems.join("; ") });
          input.setAttribute("aria-invalid", "true");
          input.setAttribute("aria-describedby", id);
        }
        input.addEventListener("keydown", (event) => move(event, number, at, column));
        input.addEventListener("change", () => {
          const text = written(input.value, cell.text);
          replace(cell.at, cell.at + cell.text.length, text);
          cell.text = text;
        });
      });
      const tools = add("td", line, { className: "row" });
      const ruled = (rows, focus) => {
        wanted = [number, Math.max(0, focus), 0];
        rewrite(table, { rows: rowsText(rows) });
      };
      const all = () => texts(table);
      const swapped = (other) => {
        const rows = all();
        [rows[at], rows[other]] = [rows[other], rows[at]];
        return rows;
      };
      if (at > 0) button(tools, "↑", `Move row ${at + 1} of ${table.id} up`, () => ruled(swapped(at - 1), at - 1));
      if (at < table.rows.length - 1)
        button(tools, "↓", `Move row ${at + 1} of ${table.id} down`, () => ruled(swapped(at + 1), at + 1));
      button(tools, "Remove", `Remove row ${at + 1} of ${table.id}`, () =>
        ruled(
          all().filter((_, other) => other !== at),
          at - 1,
        ),
      );
    });
    const tools = add("p", part, { className: "row" });
    button(tools, "Add a row", `Add a row to ${table.id}`, () => {
      wanted = [number, table.rows.length, 0];
      rewrite(table, { rows: rowsText([...texts(table), columns.map(() => '"-"')]) });
    });
    for (const [key, text] of [
      ["inputs", "Add an input"],
      ["outputs", "Add an output"],
    ])
      button(tools, text, `${text} to ${table.id}`, () => {
        const at = key === "inputs" ? table.inputs.length : columns.length;
        wanted = [number, -1, at];
        const names = key === "inputs" ? [...table.inputs, "score"] : [...table.outputs, "reason"];
        rewrite(table, {
          [key]: array(names),
          rows: rowsText(texts(table).map((row) => [...row.slice(0, at), '"-"', ...row.slice(at)])),
        });
      });
  };

  area.addEventListener("rules:checked", ({ detail }) => {
    current = detail.text;
    const focused = holder.contains(document.activeElement) ? document.activeElement.dataset.cell : null;
    const typing = focused && document.activeElement.value !== document.activeElement.defaultValue;
    // A text that is not valid TOML has no tables; the grids then wait for the correction.
    if (!detail.tables.length && tables.length && !detail.ok) return busy();
    const characters = Array.from(current);
    const units = [0];
    for (const one of characters) units.push(units.at(-1) + one.length);
    const starts = [0];
    characters.forEach((one, at) => one === "\n" && starts.push(at + 1));
    tables = detail.tables.map((table) => ({
      ...table,
      ...Object.fromEntries(
        ["inputs_at", "outputs_at", "rows_at"].map((key) => [key, table[key].map((at) => units[at])]),
      ),
      rows: table.rows.map((row, number) =>
        row.map((cell, column) => {
          const end = row[column + 1]?.column ?? Infinity;
          const own = detail.problems.filter(
            (one) => one.line === cell.line && one.column >= cell.column && one.column < end,
          );
          const first = column === 0 ? detail.problems.filter((one) => one.rule === `${table.id}.row${number + 1}`) : [];
          const here = [...own, ...first.filter((one) => one.line !== cell.line || one.column < cell.column)];
          return {
            text: cell.text,
            at: units[starts[cell.line - 1] + cell.column - 1],
            problems: here.map((one) => `${one.problem}${one.remedy ? `; ${one.remedy}` : ""}`),
          };
        }),
      ),
    }));
    if (typing) return; // The next change of the cell uses the new places.
    panel.hidden = !tables.length;
    holder.removeAttribute("aria-busy");
    holder.replaceChildren();
    tables.forEach(draw);
    for (const one of holder.querySelectorAll("input")) one.defaultValue = one.value;
    const focus = wanted ? wanted.join(" ") : focused;
    wanted = null;
    if (focus) holder.querySelector(`[data-cell="${focus}"]`)?.focus();
  });
  // The places are those of the checked text. After a change of the text, the grids wait for the next check.
  area.addEventListener("input", () => area.value === current || busy());
})();
