// The API key of a server that asks for one. It stays in this browser tab until the tab is closed.

import { $ } from "./elements.js";

const NAME = "idcf-api-key";
let key = sessionStorage.getItem(NAME);
let asked = null; // the open question: one for all requests that wait for a key

export const currentKey = () => key;

// Ask for a key after a request with `refused` (null: with none). True: there is a new one to try.
export function askForKey(refused) {
  if (key !== refused) return Promise.resolve(true); // given meanwhile
  return (asked ??= ask(refused).finally(() => { asked = null; }));
}

function ask(refused) {
  const dialog = $("key-dialog"), field = $("key-value"), problem = $("key-problem");
  const tell = (text) => { problem.textContent = text; problem.hidden = !text; };
  tell(refused ? "The server does not accept this key. Check it, then enter it again." : "");
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      const value = field.value.trim();
      if (!/^[!-~]+$/.test(value)) return tell("A key has no spaces and no letters beyond ASCII. Check it, then enter it again.");
      key = value;
      sessionStorage.setItem(NAME, key);
      dialog.close("given");
    };
    $("key-cancel").onclick = () => dialog.close("");
    dialog.oncancel = () => { dialog.returnValue = ""; };
    dialog.onclose = () => resolve(dialog.returnValue === "given");
  });
}
