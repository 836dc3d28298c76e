/** The page of a masked language model: the most probable words for each [MASK] of a text as one types it. */

import { MASK } from "./filling.js";
import { added, bars, element, made, newest, say, show } from "./page.js";

const TOP = 5; // pieces for each mask
const SAMPLE = `The ${MASK} of France is ${MASK}.`;

/** Builds the form of a model, and fills the text on each input. @param {any} model */
export async function start(model) {
  const field = added("text", `Text, with ${MASK} where a word is to be found`, SAMPLE, made("textarea", { rows: 4 }));
  show();
  const update = newest(async () => {
    const begin = performance.now();
    const [text, answers] = [field.value, /** @type {any[]} */ ([])];
    try {
      answers.push(...(await model.fill(text, TOP)));
      say("");
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      say(error.message); // no mask in the text, or too long a text
    }
    element("result").replaceChildren(...answers.flatMap((pieces, number) => [
      ...(answers.length > 1 ? [made("h3", {}, `Mask ${number + 1}`)] : []),
      bars(pieces.map(({ piece, probability }) => [piece, probability, `${(100 * probability).toFixed(1)} %`])),
    ]));
    element("time").textContent = answers.length ? `${(performance.now() - begin).toFixed(0)} ms` : "";
  });
  element("form").addEventListener("input", update);
  await update();
}
