// The document that this tab has open, for when it is loaded anew. Other tabs have their own.

import { attempt } from "./history";

const NAME = "longview-open:1";

/** Its id; null where nothing was open, and where the browser stores nothing. */
export function lastOpen(): string | null {
  return attempt(() => sessionStorage.getItem(NAME));
}

export function setLastOpen(id: string | null): void {
  attempt(() => {
    if (id === null) sessionStorage.removeItem(NAME);
    else sessionStorage.setItem(NAME, id);
    return null;
  });
}
