"use strict";
/* Tooltips of marks, and highlighting of all marks with one key (a rank, a run, a curve). */
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  for (const title of document.querySelectorAll("svg title")) {
    const mark = title.parentNode;
    if (mark.nodeName === "svg") continue;
    mark.dataset.t = title.textContent;
    title.remove();
  }
  const byKey = new Map();
  for (const mark of document.querySelectorAll("[data-k]")) {
    const found = byKey.get(mark.dataset.k) || [];
    found.push(mark);
    byKey.set(mark.dataset.k, found);
  }
  let lit = null;
  let pinned = null;
  const light = (key) => {
    if (key === lit) return;
    const set = (name, on) => {
      for (const mark of byKey.get(name) || []) {
        mark.classList.toggle("on", on);
        const figure = mark.closest("svg");
        if (figure) figure.classList.toggle("lit", on);
      }
    };
    if (lit !== null) set(lit, false);
    if (key !== null) set(key, true);
    lit = key;
  };
  const keyOf = (target) => {
    const mark = target instanceof Element && target.closest("[data-k]");
    return mark ? mark.dataset.k : null;
  };
  document.addEventListener("pointermove", (event) => {
    const mark = event.target instanceof Element && event.target.closest("[data-t]");
    tip.hidden = !mark;
    if (mark) {
      tip.textContent = mark.dataset.t;
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
      tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + "px";
    }
    light(pinned !== null ? pinned : keyOf(event.target));
  });
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest("a")) return;
    const key = keyOf(event.target);
    pinned = key === pinned ? null : key;
    light(pinned);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = null;
    tip.hidden = true;
    light(null);
  });
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
})();
