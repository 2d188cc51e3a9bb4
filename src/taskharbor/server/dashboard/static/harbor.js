// What every page has: live updates, keys, copy buttons, times that stay right, notices. Pages read without it.
(function () {
  "use strict";
  const mount = document.documentElement.dataset.mount;
  const $ = (selector, from) => (from || document).querySelector(selector);
  const $$ = (selector, from) => Array.from((from || document).querySelectorAll(selector));

  // -- notices --------------------------------------------------------------------------------------
  function notice(text, tone) {
    const line = document.createElement("p");
    line.className = "notice " + (tone || "good");
    line.textContent = text;
    $("#notices").append(line);
    setTimeout(() => line.remove(), tone === "bad" ? 12000 : 6000);
  }
  $$("#notices .notice").forEach((line) => setTimeout(() => line.remove(), 8000));
  document.body.addEventListener("harbor:notice", (event) => notice(event.detail.text, event.detail.tone));
  document.body.addEventListener("htmx:sendError", () => notice("The server does not answer. Nothing was changed.", "bad"));
  document.body.addEventListener("htmx:responseError", (event) => {
    if (!event.detail.xhr.getResponseHeader("HX-Trigger")) notice("The server refused this: " + event.detail.xhr.status, "bad");
  });

  // -- times ----------------------------------------------------------------------------------------
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function words(seconds) {
    if (seconds < 60) return Math.floor(seconds) + " s";
    const at = units.findIndex(([, size]) => seconds >= size);
    const [unit, size] = units[at], [lower, ofLower] = units[at + 1];
    const rest = Math.floor((seconds % size) / ofLower);
    return Math.floor(seconds / size) + " " + unit + (rest ? " " + rest + " " + lower : "");
  }
  function tick() {
    const now = Date.now();
    for (const time of $$("time[datetime]")) {
      const seconds = (now - Date.parse(time.dateTime)) / 1000;
      const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? words(seconds) + " ago" : "in " + words(-seconds);
      if (time.textContent !== text) time.textContent = text;
    }
  }
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  // -- copy -----------------------------------------------------------------------------------------
  // The clipboard interface is missing over plain HTTP; a selected field and the old command work there.
  async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "offscreen";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("refused");
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    copy(button.dataset.copy).then(() => notice("Copied."), () => notice("The browser refused to copy.", "bad"));
  });

  // -- live -----------------------------------------------------------------------------------------
  // One request brings the parts of the page that are marked data-live. A hidden tab has no stream and asks nothing.
  const GAP = 1000, POLL = 5000;
  let stream = null, polling = null, busy = false, wanted = false, lastAt = 0, timer = null;
  const state = $("#live-state");
  function show(name) {
    if (!state) return;
    state.hidden = false;
    state.dataset.state = name;
    $(".word", state).textContent = { on: "Live", poll: "Live", off: "Paused", lost: "Offline" }[name];
  }
  const writing = (form) => { const at = document.activeElement; return form.contains(at) && at.matches("input, textarea, select"); };
  const morphing = {
    morphStyle: "outerHTML",
    restoreFocus: true,
    callbacks: {
      beforeNodeMorphed(old, fresh) {
        if (!(old instanceof Element)) return true;
        if (old.hasAttribute("data-keep") && fresh instanceof Element && fresh.hasAttribute("data-keep")) return false;
        if (old.matches("form") && (old.dataset.used || writing(old))) return false;
        return true;
      },
      beforeNodeRemoved(old) {
        return !(old instanceof Element && old !== document.activeElement && old.matches("form[data-used]"));
      },
      beforeAttributeUpdated(name, node) {
        if (node.tagName === "DETAILS" && name === "open") return false;
        if (node.tagName === "INPUT" && (name === "checked" || name === "value")) return false;
        if (name === "data-used" || name === "hidden" && node.hasAttribute("data-copy")) return false;
        return !(name === "class" && node.hasAttribute("data-row") && node.classList.contains("at"));
      },
    },
  };
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form");
    if (form && event.target.type !== "checkbox") form.dataset.used = "yes";
  });
  function apply(html) {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const part of $$("[data-live]")) {
      const fresh = part.id && page.getElementById(part.id);
      if (!fresh || fresh.isEqualNode(part)) continue;
      // Only of a field: the label of a focused button must follow.
      Idiomorph.morph(part, fresh, { ...morphing, ignoreActiveValue: document.activeElement.matches("input, textarea, select") });
      const now = document.getElementById(part.id);
      reveal(now);
      htmx.process(now);
    }
    tick();
    if ($("[data-soon]")) setTimeout(soon, GAP);
    document.dispatchEvent(new CustomEvent("harbor:updated"));
  }
  async function refresh() {
    if (busy) { wanted = true; return; }
    busy = true;
    wanted = false;
    lastAt = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-TaskHarbor-Live": "1" }, credentials: "same-origin", redirect: "manual" });
      if (answer.status === 401 || answer.type === "opaqueredirect") { location.reload(); return; }
      if (answer.status === 204) setTimeout(soon, 3000 + Math.random() * 3000);  // the store was asked enough for now
      else if (answer.ok) apply(await answer.text());
    } catch { show("lost"); } finally {
      busy = false;
      if (wanted) soon();
    }
  }
  // The server may answer with what it read some seconds ago, so the last change is looked at twice more.
  let later = [];
  function changed() {
    soon();
    later.forEach(clearTimeout);
    later = [6000, 17000].map((delay) => setTimeout(soon, delay));
  }
  function soon() {
    if (document.hidden || timer) return;
    timer = setTimeout(() => { timer = null; refresh(); }, Math.max(0, lastAt + GAP - Date.now()));
  }
  function listen() {
    if (document.hidden || stream || !$("[data-live]")) return;
    stream = new EventSource(mount + "/live");
    stream.addEventListener("open", () => { show("on"); clearInterval(polling); polling = null; });
    stream.addEventListener("change", changed);
    stream.addEventListener("error", () => {
      if (stream && stream.readyState === EventSource.CLOSED) {  // refused: too many streams, or signed out
        stream = null;
        if (!polling) { show("poll"); polling = setInterval(() => { if (!document.hidden) soon(); }, POLL); }
      } else show("lost");
    });
  }
  function rest() {
    if (stream) stream.close();
    stream = null;
    clearInterval(polling); polling = null;
    clearTimeout(timer); timer = null;
    later.forEach(clearTimeout); later = [];
    show("off");
  }
  document.addEventListener("visibilitychange", () => {
    if (!$("[data-live]")) return;
    if (document.hidden) rest(); else { listen(); changed(); }
  });
  window.addEventListener("pagehide", () => { if (stream) rest(); });
  window.addEventListener("pageshow", (event) => { if (event.persisted) { listen(); changed(); } });
  document.body.addEventListener("harbor:refresh", () => {
    $$("form[data-used]").forEach((form) => delete form.dataset.used);
    lastAt = 0;
    refresh();
  });

  // -- rows and keys --------------------------------------------------------------------------------
  const rows = () => $$("[data-row]").filter((row) => row.offsetParent !== null);
  function go(step) {
    const all = rows(), at = all.findIndex((row) => row.classList.contains("at"));
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
    if (!next) return;
    all.forEach((row) => row.classList.toggle("at", row === next));
    const link = $("[data-open]", next);
    (link || next).focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
  const current = () => $("[data-row].at");
  function select(row) {
    const box = row && $("input[type=checkbox]", row);
    if (box) { box.checked = !box.checked; box.dispatchEvent(new Event("change", { bubbles: true })); }
  }
  const themeButton = $("[data-theme-toggle]");
  function theme(next) {
    const name = next ? harborTheme.next() : harborTheme.current();
    if (themeButton) themeButton.textContent = { system: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[name];
    if (next) notice("Theme: " + { system: "as the system", light: "light", dark: "dark" }[name]);
  }
  const keys = $("#keys");
  const commands = {
    "/": () => { const field = $("[data-search]"); if (field) { field.focus(); field.select(); } else { const link = $("a[data-key=j]") || $("nav.pages a[href$='/jobs']"); if (link) location.href = link.href; } },
    "?": () => keys.showModal(),
    j: () => go(1),
    k: () => go(-1),
    x: () => select(current()),
    r: () => { refresh(); notice("Refreshed."); },
    t: () => theme(true),
    Enter: () => { const link = current() && $("[data-open]", current()); if (link) link.click(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
    if (typing) { if (event.key === "Escape") typing.blur(); return; }
    if (keys && keys.open) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const page = /^[a-z]$/.test(event.key) && $("nav.pages a[data-key='" + event.key + "']");
    const command = commands[event.key] || (page && (() => page.click()));
    if (!command) return;
    event.preventDefault();
    command();
  });
  if (themeButton) { themeButton.hidden = false; themeButton.addEventListener("click", () => theme(true)); theme(false); }
  const help = $("[data-help]");
  if (help && keys) help.addEventListener("click", (event) => { event.preventDefault(); keys.showModal(); });

  // What works only with script is hidden until now.
  function reveal(from) { $$("[data-copy]", from).forEach((button) => { button.hidden = false; }); }
  reveal(document);
  tick();
  listen();
  if ($("[data-live]")) later = [setTimeout(soon, $("[data-soon]") ? GAP : 17000)];
})();
