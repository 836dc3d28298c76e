/** The page of a language model: a text that writes itself, token by token, from a prompt as one types it. */

import { added, element, made, newest, say, show } from "./page.js";

/** @type {[string, string, string, Record<string, any>][]} name, label, first value and bounds of each number */
const NUMBERS = [
  ["length", "Tokens", "100", { min: 1, step: 1 }],
  ["temperature", "Temperature", "0.8", { min: 0, step: "any" }],
  ["top_k", "Top k", "", { min: 1, step: 1, placeholder: "all" }],
  ["top_p", "Top p", "0.95", { min: 0.001, max: 1, step: "any", placeholder: "1" }],
  ["min_p", "Min p", "", { min: 0, max: 1, step: "any", placeholder: "0" }],
  ["seed", "Seed", "0", { min: 0, step: 1 }],
];

/** @param {Record<string, any>} values of the number fields @returns {Record<string, number|bigint>} those filled in */
function optionsOf(values) {
  const given = Object.entries(values).filter(([name, value]) => name !== "prompt" && value !== "");
  return Object.fromEntries(given.map(([name, value]) => {
    return [name, name === "seed" && /^-?\d+$/.test(value) ? BigInt(value) : Number(value)];
  }));
}

/** Builds the form of a model, and writes anew on each input; what it wrote before ends there. @param {any} model */
export async function start(model) {
  const form = element("form");
  const prompt = added("prompt", "Prompt", "", made("textarea", { rows: 3, placeholder: "the beginning of a text" }));
  const numbers = made("div", { className: "numbers" });
  form.append(numbers);
  for (const [name, label, value, bounds] of NUMBERS) {
    const cell = made("div");
    numbers.append(cell);
    added(name, label, value, made("input", { type: "number", ...bounds }), cell);
  }
  show();
  let writing = new AbortController();
  const write = newest(async () => {
    writing = new AbortController();
    const { signal } = writing;
    const wrong = NUMBERS.find(([name]) => !element(name).checkValidity());
    if (wrong) return say(`${wrong[1]}: ${element(wrong[0]).validationMessage}`);
    const options = optionsOf(Object.fromEntries(new FormData(form)));
    const text = prompt.value;
    const written = made("span");
    const result = made("div", { className: "text", dir: "auto" }, made("span", { className: "prompt" }, text), written);
    element("result").replaceChildren(result);
    say("");
    const begin = performance.now();
    let tokens = 0;
    for await (const part of model.stream(text, { ...options, signal })) {
      written.append(part);
      tokens++;
      element("time").textContent = `${tokens} tokens, ${(performance.now() - begin).toFixed(0)} ms`;
    }
  });
  form.addEventListener("input", () => {
    writing.abort();
    return write();
  });
  await write();
}
