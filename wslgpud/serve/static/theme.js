// Light or dark, before the first paint: a module would load too late and the page would flash.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = new URLSearchParams(location.search).get("theme");
  try { chosen ??= localStorage.getItem("wslgpud.theme"); } catch { /* a browser that keeps nothing */ }
  const set = () => {
    const known = chosen === "light" || chosen === "dark";
    const theme = known ? chosen : system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    document.getElementById("dark").media = theme === "dark" ? "all" : "not all";
    dispatchEvent(new Event("theme"));
  };
  system.addEventListener("change", set);
  // For the switch in the page's head.
  addEventListener("theme-wanted", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("wslgpud.theme", chosen); } catch { /* holds until the page is closed */ }
    set();
  });
  set();
})();
