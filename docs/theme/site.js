// Tables. Long names may break after a dot, a bracket or an underscore; each cell of a table of text
// knows its heading, for the widths at which it stands alone.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    for (const name of table.querySelectorAll("td code .pre")) {
      const parts = name.textContent.split(/(?<=[._(=,\/])/);
      name.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
    }
    const cells = [...table.querySelectorAll("tbody td")];
    if (!cells.some((cell) => cell.textContent.trim().length > 60)) continue;
    table.classList.add("prose");
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const cell of cells) {
      if (cell.cellIndex > 0) cell.dataset.head = heads[cell.cellIndex] ?? "";
      cell.classList.toggle("blank", !cell.textContent.trim());
    }
  }
});
