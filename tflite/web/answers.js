/** The page of a task: a field for each text that the model reads, and the answer to them as one types. */

import { added, bars, element, made, newest, say, show } from "./page.js";

const NEWS = "Ada Lovelace met Charles Babbage in London in 1833. He showed her the Difference Engine at his house in "
  + "Dorset Street, and ten years later she published her notes on the Analytical Engine.";
/** @type {Record<string, [string, string, string][]>} the name, label and first text of each field */
const FORMS = {
  tag: [["text", "Text", NEWS]],
  answer: [["question", "Question", "Where did Ada Lovelace meet Babbage?"], ["context", "Text", NEWS]],
  one: [["text", "Text", "A warm, funny and beautifully acted film."]],
  pair: [["text", "Text", "A man is playing the guitar."], ["pair", "Second text", "Someone makes music."]],
};

/** A text with marked spans: [{start, end, type}], in order. */
function marked(text, spans, types) {
  const node = made("div", { className: "text", dir: "auto" });
  let before = 0;
  for (const { start, end, type } of spans) {
    const mark = made("mark", {}, text.slice(start, end));
    if (type) {
      mark.style.setProperty("--hue", String((215 + 137 * types.indexOf(type)) % 360));
      mark.append(made("small", {}, type));
    }
    node.append(text.slice(before, start), mark);
    before = end;
  }
  node.append(text.slice(before));
  return node;
}

const large = (text) => made("p", { className: "large" }, text);
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const probabilities = (answer, labels) =>
  bars(labels.map((label) => [label, answer.probabilities[label], percent(answer.probabilities[label])]));

/** What is shown of an answer, by task. */
const SHOWN = {
  tag(answer, { text }, labels) {
    const spans = answer.entities ?? answer.words.map((word) => ({ ...word, type: word.label }));
    const types = [...new Set(answer.entities ? labels.map((label) => label.slice(2)) : labels)];
    return [marked(text, spans, types)];
  },
  answer(answer, { context }) {
    if (!answer.answer) return [large("No answer in this text."), marked(context, [])];
    const more = answer.n_best.slice(0, 3).map((best) => [best.answer, best.probability, percent(best.probability)]);
    return [large(answer.answer), marked(context, [answer]), bars(more)];
  },
  classify: (answer, _, labels) => [large(answer.label), probabilities(answer, labels)],
  multilabel(answer, _, labels) {
    return [large(answer.labels.join(", ") || "none of the labels"), probabilities(answer, labels)];
  },
  regress: (answer) => [large(answer.value.toFixed(3))],
};

/** Builds the form of a model, and answers its fields' present values on each input. */
export async function start(model) {
  const form = element("form");
  for (const [name, label, text] of FORMS[model.task] ?? FORMS[model.bundle.reads.pair ? "pair" : "one"]) {
    const field = name === "question" ? made("input", { autocomplete: "off" }) : made("textarea", { rows: 4 });
    added(name, label, text, field);
  }
  show();
  const update = newest(async () => {
    const values = Object.fromEntries(new FormData(form));
    for (const name in values) values[name] = values[name].replace(/\r\n/g, "\n");
    const begin = performance.now();
    const answer = await model.predict(...Object.values(values));
    const took = performance.now() - begin;
    const { error } = answer;
    const quiet = () => [made("p", { className: "quiet" }, error)];
    element("result").replaceChildren(...(error ? quiet() : SHOWN[model.task](answer, values, model.labels)));
    element("time").textContent = `${took.toFixed(0)} ms`;
    say(answer.truncated ? "The text was longer than the model reads, and was cut." : "");
  });
  form.addEventListener("input", update);
  await update();
}
