"use strict";
const valueOf = (cell) => {
  if (cell.classList.contains("none")) return null;
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim(), number = Number(text.replace(/[%,]/g, "").split(" ")[0]);
  return text !== "" && !Number.isNaN(number) ? number : text;
};
const compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return Number.isNaN(a) - Number.isNaN(b) || a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort by this column";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].filter((row) => !row.classList.contains("pinned")).map((row) => [valueOf(row.cells[column]), row]);
      rows.sort((a, b) => (a[0] === null || b[0] === null || !down ? compare(a[0], b[0]) : compare(b[0], a[0])));
      body.append(...rows.map(([, row]) => row));
    });
  });
  if (body.rows.length > 25) {
    const find = document.createElement("input");
    find.type = "search";
    find.className = "find";
    find.placeholder = `Find among ${body.rows.length} rows`;
    find.setAttribute("aria-label", find.placeholder);
    find.addEventListener("input", () => {
      const wanted = find.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    (table.closest(".scroll") ?? table).before(find);
  }
}
for (const table of document.querySelectorAll(".text table")) {
  const around = document.createElement("div");
  around.className = "scroll";
  table.replaceWith(around);
  around.append(table);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
