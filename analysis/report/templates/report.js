"use strict";
/* Tooltips of marks, and highlighting of all marks with one key (a rank, a run, a curve). */
(() => {
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true, role: "tooltip" });
  document.body.append(tip);
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.dataset.t = title.textContent;
    title.remove();
  }
  let lit = null, pinned = null;
  const light = (key) => {
    if (key === lit) return;
    lit = key;
    for (const mark of document.querySelectorAll("[data-k]")) mark.classList.toggle("on", mark.dataset.k === key);
    for (const figure of document.querySelectorAll("svg")) figure.classList.toggle("lit", !!figure.querySelector(".on"));
  };
  const data = (event, name) => {
    const mark = event.target instanceof Element && event.target.closest(`[data-${name}]`);
    return mark ? mark.dataset[name] : null;
  };
  document.addEventListener("pointermove", (event) => {
    const text = data(event, "t"), below = event.clientY + 18;
    tip.hidden = text === null;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (below + box.height > innerHeight ? event.clientY - box.height - 10 : below) + "px";
    light(pinned !== null ? pinned : data(event, "k"));
  });
  document.addEventListener("click", (event) => {
    const key = data(event, "k");
    if (!event.target.closest("a")) light((pinned = key === pinned ? null : key));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    tip.hidden = true;
    light((pinned = null));
  });
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
})();
