/** The page of a model that writes a text for a text: its best texts as one types, and where it looked. */

import { added, bars, element, made, newest, say, show } from "./page.js";

const SAMPLE = "hello";
const MARK = "\u00b7"; // in place of white space

/** @param {string} text @returns {string} */
const visible = (text) => text.trim() || MARK;

/**
 * A heat map: a row for each token that was written, a column for each of the text. The numbers are there for screen
 * readers, and for the pointer.
 *
 * @param {string} text
 * @param {string[]} tokens that were written
 * @param {{inputs: number[][], weights: number[][]}} attention
 * @returns {HTMLElement}
 */
function heatMap(text, tokens, { inputs, weights }) {
  const read = inputs.map(([start, end]) => visible(text.slice(start, end)));
  const head = made("tr", {}, made("td"), ...read.map((token) => made("th", { scope: "col", dir: "auto" }, token)));
  const rows = tokens.map((token, i) => {
    const cells = weights[i].map((weight, j) => {
      const percent = `${Math.round(100 * weight)} %`;
      const cell = made("td", { title: `${visible(token)} \u2190 ${read[j]}: ${percent}` }, percent);
      cell.style.setProperty("--part", `${(100 * Math.max(0, Math.min(1, weight))).toFixed(1)}%`);
      return cell;
    });
    return made("tr", {}, made("th", { scope: "row", dir: "auto" }, visible(token)), ...cells);
  });
  const caption = made("caption", {}, "Where it looked: what it wrote in rows, what it read in columns");
  const table = made("table", {}, caption, made("thead", {}, head), made("tbody", {}, ...rows));
  const map = made("div", { className: "map", tabIndex: 0, ariaLabel: "Where it looked" }, table);
  map.setAttribute("role", "region");
  return map;
}

/** Builds the form of a model, and writes anew on each input. @param {any} model */
export async function start(model) {
  const field = added("text", "Text", SAMPLE, made("textarea", { rows: 2, spellcheck: false }));
  show();
  const update = newest(async () => {
    const text = field.value;
    const begin = performance.now();
    const answer = await model.translate(text);
    const took = performance.now() - begin;
    if (answer.error) {
      element("result").replaceChildren(made("p", { className: "quiet" }, answer.error));
    } else {
      const { n_best: best = [], alignment, attention } = answer;
      const relative = ({ text, score }) => [text || "(nothing)", Math.exp(score - answer.score), score.toFixed(2)];
      element("result").replaceChildren(
        made("p", { className: "large", dir: "auto" }, answer.text || "(nothing)"),
        ...(best.length ? [made("h3", {}, "Best texts, with their scores"), bars(best.map(relative))] : []),
        ...(alignment.length ? [heatMap(text, alignment.map(({ token }) => token), attention)] : []),
      );
    }
    element("time").textContent = `${took.toFixed(0)} ms`;
    const cut = answer.truncated ? "The text was longer than the model reads, and was cut. " : "";
    say(cut + (answer.unfinished ? "The text that it wrote has no end: it is as long as the model writes." : ""));
  });
  element("form").addEventListener("input", update);
  await update();
}
