/** Parts of the page that all kinds of answers share. */

/** @param {string} id @returns {any} */
export const element = (id) => document.getElementById(id);

/**
 * A new element with children or text.
 *
 * @param {string} tag
 * @param {Record<string, any>} properties
 * @param {(Node|string)[]} children
 * @returns {any}
 */
export function made(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/**
 * A list of items with a bar behind each.
 *
 * @param {[Node|string, number, string][]} rows name, fraction and text
 * @returns {HTMLElement}
 */
export function bars(rows) {
  return made("ol", {}, ...rows.map(([name, fraction, text]) => {
    const row = made("li", {}, made("span", {}, name), made("span", {}, text));
    row.style.setProperty("--part", `${(100 * Math.max(0, Math.min(1, fraction))).toFixed(1)}%`);
    return row;
  }));
}

/**
 * Adds a field with its label to the form; the address of the page may have its first text.
 *
 * @param {string} name
 * @param {string} label
 * @param {string} text
 * @param {any} field an input or a textarea
 * @param {HTMLElement} into the form, or a part of it
 * @returns {any} the field
 */
export function added(name, label, text, field, into = element("form")) {
  const value = new URLSearchParams(location.search).get(name) ?? text;
  Object.assign(field, { id: name, name, value, dir: "auto" });
  into.append(made("label", { htmlFor: name }, label), field);
  return field;
}

/** Shows the form and the heading of the results. */
export function show() {
  element("form").hidden = element("title").hidden = false;
  element("form").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
}

/** @param {string} notice in the line that screen readers read aloud */
export function say(notice) {
  const status = element("status");
  if (status.textContent !== notice) status.textContent = notice;
}

/** @param {any} error that ends what the page does */
export function fail(error) {
  element("status").className = "error";
  say(`It does not work: ${error?.message ?? error}`);
}

/**
 * A function that does some work for the newest input: what comes while it works is done after it, once.
 *
 * @param {() => Promise<void>} work
 * @returns {() => Promise<void>}
 */
export function newest(work) {
  let asked = 0;
  let working = false;
  return async () => {
    asked++;
    if (working) return;
    working = true;
    try {
      for (let number = 0; number !== asked; ) {
        number = asked;
        await work();
      }
    } catch (error) {
      fail(error);
    } finally {
      working = false;
    }
  };
}
