// What a reload of the page keeps, until the tab is closed: ratings or likes, skipped titles, options.

const NAME = "idcf-state";
const scale = (model) => JSON.stringify([model.implicit, model.rating_levels[0], model.rating_levels.at(-1)]);

export function keep(state, model) {
  try { sessionStorage.setItem(NAME, JSON.stringify({ ...state, scale: scale(model) })); } catch { /* full or forbidden: a reload then begins anew */ }
}

// The state of this tab, null if there is none or the server has another scale of ratings now.
export function kept(model) {
  try {
    const { scale: oldScale, ...state } = JSON.parse(sessionStorage.getItem(NAME)) ?? {};
    return oldScale === scale(model) ? state : null;
  } catch { return null; }
}
