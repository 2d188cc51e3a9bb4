// Chooses the theme before the page is drawn, so that it does not flash. Without a choice, the system's theme applies.
(function () {
  "use strict";
  const chosen = () => { try { return localStorage.getItem("taskharbor-theme"); } catch { return null; } };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(chosen());
  window.harborTheme = {
    current: () => chosen() || "system",
    next() {
      const order = ["system", "light", "dark"];
      const theme = order[(order.indexOf(this.current()) + 1) % order.length];
      try { localStorage.setItem("taskharbor-theme", theme); } catch { /* private window: it lasts for this page */ }
      apply(theme);
      document.dispatchEvent(new CustomEvent("harbor:theme", { detail: theme }));
      return theme;
    },
  };
})();
