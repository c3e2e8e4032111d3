"use strict";
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const reveal = (element) => {
    for (let at = element; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  const go = () => {
    const there = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (there) { reveal(there); there.scrollIntoView(); }
  };
  addEventListener("hashchange", go);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) { event.preventDefault(); go(); }
  });

  for (const code of all("code.copy")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.className = "copies";
    button.addEventListener("click", async () => {
      let done = true;
      try { await navigator.clipboard.writeText(code.textContent); } catch {
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "copied" : "selected";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    code.after(button);
  }

  const words = document.getElementById("words"), only = document.getElementById("only"),
    said = document.getElementById("said"), bad = new Set(["finding", "intermittent", "known"]);
  const text = (element) => element.textContent.toLowerCase();
  const cells = all("[data-cell]").map((element) => {
    const field = element.closest(".field"), group = element.closest(".group");
    const own = element.matches("details") ? element.querySelector("summary") : element;
    return { element, field, group, kind: element.dataset.kind,
             text: [field.dataset.find, group ? text(group.querySelector("summary")) : "", text(own)].join(" ")
               .toLowerCase() };
  });
  const rows = all("tr[data-kind], li[data-kind]:not([data-cell])")
    .map((element) => ({ element, kind: element.dataset.kind, text: text(element) }));
  const links = new Map(all("a.to").map((link) => [link.hash.slice(1), link]));
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (one) => (!only.checked || bad.has(one.kind)) && wanted.every((word) => one.text.includes(word));
    const fields = new Map(), groups = new Map();
    let shown = 0;
    for (const cell of cells) {
      const fit = fits(cell);
      cell.element.hidden = !fit;
      shown += fit;
      fields.set(cell.field, (fields.get(cell.field) || 0) + fit);
      if (cell.group) groups.set(cell.group, (groups.get(cell.group) || 0) + fit);
    }
    for (const [group, count] of groups) group.hidden = !count;
    for (const [field, count] of fields) {
      field.hidden = !count;
      const link = links.get(field.dataset.id);
      if (link) link.closest("td").classList.toggle("dim", !count);
      for (const passes of all(".passes", field)) passes.hidden = all("[data-cell]", passes).every((one) => one.hidden);
    }
    for (const row of all("#matrix tbody tr")) row.hidden = all("td", row).every((td) => td.matches(".dim, .none"));
    for (const row of rows) row.element.hidden = !fits(row);
    for (const list of all(".list")) list.hidden = all("[data-kind]", list).every((one) => one.hidden);
    const unclear = cells.filter((one) => one.kind === "inconclusive" && one.element.hidden).length;
    said.textContent = `${shown} of ${cells.length} cells` + (unclear ? `; ${unclear} inconclusive ones are hidden` : "");
  };
  let later;
  words.addEventListener("input", () => { clearTimeout(later); later = setTimeout(filter, 80); });
  only.addEventListener("change", filter);
  document.getElementById("open").addEventListener("click", () => {
    for (const each of all("details.field, details.group")) if (!each.hidden) each.open = true;
  });
  document.getElementById("close").addEventListener("click", () => {
    for (const each of all("details.field, details.group, details.cell")) each.open = false;
  });
  addEventListener("beforeprint", () => {
    for (const each of all("details.field, details.group")) if (bad.has(each.dataset.kind)) each.open = true;
  });
  document.getElementById("controls").hidden = false;
  filter();
  go();
})();
