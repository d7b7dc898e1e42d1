// Messages near the action that they belong to: waiting, busy, or failed with a button to try again.

import { announce, h } from "./elements.js";

const SLOW_MS = 1000; // a wait that is mentioned

// A message of its own; it stands at one place at a time, `fallback` (a selector) if its place is gone.
export function createNotice(fallback) {
  const element = h("div", { class: "notice" });
  const clear = () => element.remove();

  function place(selector, className, ...children) {
    element.className = className;
    element.replaceChildren(...children);
    (document.querySelector(selector) ?? document.querySelector(fallback)).append(element);
  }

  function tell(selector, text) {
    place(selector, "notice", h("p", {}, text));
    announce(text);
  }

  function fail(selector, text, retry) {
    const lostFocus = document.activeElement === document.body;
    const button = h("button", { type: "button", onclick: () => { clear(); retry(); } }, "Try again");
    place(selector, "notice failure", h("p", { role: "alert" }, text), button);
    element.scrollIntoView({ block: "nearest" });
    if (lostFocus) button.focus({ preventScroll: true });
  }

  // Wait for work, a function that is given what to call while the server is busy.
  async function during(selector, work) {
    const timer = setTimeout(() => tell(selector, "Waiting for the server…"), SLOW_MS);
    const onBusy = () => { clearTimeout(timer); tell(selector, "The server is busy; trying again…"); };
    try {
      return await work(onBusy);
    } finally {
      clearTimeout(timer);
    }
  }

  return { clear, tell, fail, during };
}
