"use strict";
document.documentElement.classList.add("js");

// A click on a column's head sorts its table: rising, falling, then as it came. Rows stay in their
// section, and empty cells come last either way.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const sections = [...table.tBodies].map((body) => {
    return { body, rows: [...body.rows].filter((row) => !row.classList.contains("section")) };
  });
  const next = { ascending: "descending", descending: "" };
  heads.forEach((head, column) => {
    const isNumber = head.dataset.kind === "number";
    const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b, "en"));
    head.querySelector("button").addEventListener("click", () => {
      const order = next[head.getAttribute("aria-sort")] ?? "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order) head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      for (const { body, rows } of sections) {
        const value = (row) => row.cells[column].dataset.value;
        const full = rows.filter((row) => value(row) !== undefined);
        const empty = rows.filter((row) => value(row) === undefined);
        full.sort((a, b) => sign * compare(value(a), value(b)));
        body.append(...(order ? [...full, ...empty] : rows));
      }
    });
  });
}

// A click on a legend's entry hides its line or shows it again.
for (const key of document.querySelectorAll(".legend button")) {
  key.addEventListener("click", () => {
    const shown = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(shown));
    const name = `svg[role="img"] [data-series="${key.dataset.series}"]`;
    for (const part of key.closest("figure").querySelectorAll(name)) {
      part.classList.toggle("hidden", !shown);
    }
  });
}
