// The list of jobs: completion in the search box, and ticking all rows of a page.
(function () {
  "use strict";
  const field = document.querySelector("[data-suggest]");
  if (field) {
    const list = document.getElementById(field.getAttribute("list"));
    let timer = null, asked = "";
    const ask = async () => {
      if (field.value === asked) return;
      asked = field.value;
      const address = field.dataset.suggest + "?" + new URLSearchParams({ q: asked });
      try {
        const answer = await fetch(address, { credentials: "same-origin" });
        if (!answer.ok) return;
        list.replaceChildren(...(await answer.json()).map((text) => {
          const option = document.createElement("option");
          option.value = text;
          return option;
        }));
      } catch { /* the box works without completion */ }
    };
    field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 150); });
    field.addEventListener("focus", ask, { once: true });
  }
  const all = () => document.querySelector("[data-tick-all]");
  const boxes = () => Array.from(document.querySelectorAll("[data-tick]"));
  function count() {
    const ticked = boxes().filter((box) => box.checked).length;
    const words = document.querySelector("[data-ticked]");
    if (words) words.textContent = ticked ? "With " + ticked + (ticked === 1 ? " ticked job:" : " ticked jobs:") : "With the ticked jobs:";
    const head = all();
    if (head) { head.hidden = false; head.indeterminate = ticked > 0 && ticked < boxes().length; head.checked = ticked > 0 && ticked === boxes().length; }
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-tick-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-tick], [data-tick-all]")) count();
  });
  document.addEventListener("harbor:updated", count);
  count();
})();
