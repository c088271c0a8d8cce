"use strict";
(function () {
  var root = document.documentElement;
  function all(what, from) { return Array.prototype.slice.call((from || document).querySelectorAll(what)); }
  function make(tag, text) { var e = document.createElement(tag); e.textContent = text; if (tag === "button") e.type = "button"; return e; }

  /* light and dark */
  var theme = document.getElementById("theme");
  function dark() { return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; }
  function say() { theme.textContent = dark() ? "Light colours" : "Dark colours"; }
  try { var kept = localStorage.getItem("fairmedfm-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch (e) { /* private window */ }
  theme.hidden = false; say();
  theme.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark"; say();
    try { localStorage.setItem("fairmedfm-theme", root.dataset.theme); } catch (e) { /* private window */ }
  });

  /* tables: a button in every heading sorts its column */
  function key(row, i) { var c = row.cells[i], v = c.getAttribute("data-v"); return v === null ? c.textContent.trim().toLowerCase() : v === "" ? null : parseFloat(v); }
  function order(a, b) { return a === null ? (b === null ? 0 : 1) : b === null ? -1 : typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }); }
  all("table.sortable").forEach(function (table) {
    var heads = all("thead th", table), body = table.tBodies[0], rows = all("tr", body);
    heads.forEach(function (th, i) {
      var button = make("button", th.textContent.trim());
      th.textContent = ""; th.appendChild(button); th.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () {
        var up = th.getAttribute("aria-sort") !== "ascending";
        heads.forEach(function (h) { h.setAttribute("aria-sort", "none"); });
        th.setAttribute("aria-sort", up ? "ascending" : "descending");
        rows.map(function (r, n) { return [key(r, i), n, r]; }).sort(function (a, b) {
          if (a[0] === null || b[0] === null) return order(a[0], b[0]) || a[1] - b[1];
          return (up ? 1 : -1) * order(a[0], b[0]) || a[1] - b[1];
        }).forEach(function (x) { body.appendChild(x[2]); });
      });
    });
    if (rows.length < 20) return;
    var label = make("label", "Show rows with "), box = make("input", "");
    box.type = "search"; label.className = "filter"; label.appendChild(box);
    box.addEventListener("input", function () {
      var word = box.value.trim().toLowerCase();
      rows.forEach(function (r) { r.hidden = word !== "" && r.textContent.toLowerCase().indexOf(word) < 0; });
    });
    table.parentNode.parentNode.insertBefore(label, table.parentNode);
  });

  /* files */
  function save(name, type, text) {
    var a = document.createElement("a"), url = URL.createObjectURL(new Blob([text], { type: type }));
    a.href = url; a.download = name; document.body.appendChild(a); a.click(); a.remove();
    setTimeout(function () { URL.revokeObjectURL(url); }, 1000);
  }
  function field(text) { text = text.replace(/\s+/g, " ").trim(); return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text; }
  function cell(c) { var v = c.getAttribute("data-v"); return v === null ? field(c.textContent) : v; }
  var place = document.getElementById("files");
  if (place) {
    var json = make("button", "Save the numbers (JSON)"), csv = make("button", "Save the groups (CSV)");
    json.addEventListener("click", function () { save("fairness.json", "application/json", document.getElementById("report").textContent); });
    csv.addEventListener("click", function () {
      save("fairness.csv", "text/csv", all("#groups-table tr").map(function (r) { return Array.prototype.map.call(r.cells, cell).join(","); }).join("\n") + "\n");
    });
    place.appendChild(json); place.appendChild(csv);
  }

  /* print everything, closed parts too */
  var opened = [];
  addEventListener("beforeprint", function () { opened = all("details:not([open])"); opened.forEach(function (d) { d.open = true; }); });
  addEventListener("afterprint", function () { opened.forEach(function (d) { d.open = false; }); opened = []; });
})();
