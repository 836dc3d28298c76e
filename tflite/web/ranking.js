/** The page of an encoder: the sentences of a text or a file, ranked by their cosines with a query as one types it. */

import { roleOf } from "./features.js";
import { BUSY, pause } from "./pause.js";
import { added, bars, element, fail, made, newest, say, show } from "./page.js";
import { Index, sentencesOf } from "./search.js";

const TOP = 10; // sentences in the list, and marked in the text
const MOST = 20_000; // sentences that are ranked
const LARGEST = 5_000_000; // bytes of a file
const BETWEEN = 250; // ms between two rankings while sentences are encoded
const QUERY = "How do plants get their food?";
const SAMPLE = [
  "The tide comes in twice a day. A leaf makes sugar out of light, water and air. Bread dough rises in a warm place.",
  "The train to the coast leaves at seven. She tuned the violin before the concert. The river burst its banks.",
  "Most bats sleep hanging upside down. The bank lends money to small firms. Roots draw water and minerals from soil.",
  "He repaired the bicycle with a spoon. Snow fell on the hills at night. A telescope gathers the light of stars.",
].join("\n");

const formatted = (/** @type {number} */ count) => count.toLocaleString("en");

/** The vectors of a text's sentences. Those of sentences that stay when the text changes are not computed again. */
class Sentences {
  all = /** @type {import("./search.js").Sentence[]} */ ([]);
  done = 0; // of all of them
  truncated = 0;
  index = new Index();
  numbers = /** @type {number[]} */ ([]); // of the sentences, by rows of the index: those without words have none
  answers = /** @type {Map<string, {vector?: number[], truncated?: boolean, error?: string}>} */ (new Map());
  reading = 0; // the number of the newest text

  /** @param {any} model */
  constructor(model) {
    this.model = model;
  }

  /**
   * Encodes the sentences of a text, until another text is read.
   *
   * @param {import("./search.js").Sentence[]} sentences
   * @param {() => void} progressed called while it encodes, and at the end
   */
  async read(sentences, progressed) {
    const reading = ++this.reading;
    const known = this.answers;
    this.answers = new Map();
    for (const { text } of sentences) if (known.has(text)) this.answers.set(text, /** @type {any} */ (known.get(text)));
    Object.assign(this, { all: sentences, done: 0, truncated: 0, index: new Index(), numbers: [] });
    let begin = performance.now();
    for (const [number, { text }] of sentences.entries()) {
      const answer = this.answers.get(text) ?? (await this.model.embed(text, roleOf(this.model.bundle, "passage")));
      if (reading !== this.reading) return;
      this.answers.set(text, answer);
      this.done++;
      if (answer.truncated) this.truncated++;
      if (answer.vector) {
        this.index.add(answer.vector);
        this.numbers.push(number);
      }
      if (performance.now() - begin < BUSY) continue;
      progressed();
      await pause();
      if (reading !== this.reading) return;
      begin = performance.now();
    }
    progressed();
  }
}

/** The text with the sentences found marked, in a block for each line: a mark changes the layout of its line alone. */
class View {
  sentences = /** @type {any[]} */ ([]);
  marked = /** @type {any[]} */ ([]);

  constructor() {
    this.node = made("div", { className: "text view", tabIndex: 0, dir: "auto" });
    this.node.setAttribute("role", "region");
    this.node.setAttribute("aria-label", "The text, with the sentences found");
  }

  /** @param {string} text @param {import("./search.js").Sentence[]} sentences */
  show(text, sentences) {
    this.sentences = sentences.map((sentence, i) => made("span", { id: `sentence-${i + 1}` }, sentence.text));
    this.marked = [];
    const lines = [made("div")];
    [...this.sentences, ""].forEach((node, i) => {
      const [before, ...more] = text.slice(sentences[i - 1]?.end ?? 0, sentences[i]?.start).split("\n");
      lines[lines.length - 1].append(before);
      lines.push(...more.map((blank) => made("div", {}, blank)));
      lines[lines.length - 1].append(node);
    });
    this.node.replaceChildren(...lines);
  }

  /** @param {[number, string][]} found the number of each sentence, and a note behind it */
  mark(found) {
    for (const node of this.marked) node.removeAttribute("data-note");
    this.marked = found.map(([number, note]) => {
      this.sentences[number].dataset.note = note;
      return this.sentences[number];
    });
  }
}

/** Builds the form of an encoder, and ranks the sentences on each input. @param {any} model */
export async function start(model) {
  const query = added("query", "Query", QUERY, made("input", { type: "search", autocomplete: "off" }));
  const field = added("text", "Text", SAMPLE, made("textarea", { rows: 8 }));
  const file = made("input", { id: "file", type: "file", accept: "text/*,.txt,.md,.csv,.tsv,.json,.jsonl,.log" });
  const bar = made("progress", { hidden: true });
  bar.setAttribute("aria-label", "Sentences encoded");
  const counted = made("p", { className: "quiet" });
  element("form").append(made("label", { htmlFor: "file" }, "Or a text file, chosen or dropped on this page"), file);
  element("form").append(bar, counted);
  const list = made("div");
  const view = new View();
  element("result").append(list, view.node);

  const sentences = new Sentences(model);
  let [asked, vector] = ["", /** @type {number[]|undefined} */ (undefined)];
  let ranked = 0; // the time of the newest ranking
  let notice = ""; // about the text

  const rank = newest(async () => {
    const text = query.value;
    const begin = performance.now();
    const fresh = text !== asked;
    if (fresh) [asked, vector] = [text, (await model.embed(text, roleOf(model.bundle, "query"))).vector];
    const matches = vector ? sentences.index.search(vector, TOP) : [];
    const rows = matches.map(({ row, score }) => ({ number: sentences.numbers[row], score: score.toFixed(3) }));
    list.replaceChildren(bars(rows.map(({ number, score }) => {
      const link = made("a", { href: `#sentence-${number + 1}` }, sentences.all[number].text);
      return [link, Number(score), `${score}, sentence ${formatted(number + 1)}`];
    })));
    view.mark(rows.map(({ number, score }, i) => [number, `${i + 1}: ${score}`]));
    ranked = performance.now();
    if (fresh) element("time").textContent = `${(ranked - begin).toFixed(0)} ms for this query`;
    const [best] = rows;
    const nothing = text.trim() && sentences.all.length ? "No words to compare." : "Type a query, and give a text.";
    const first = best ? `Best: sentence ${formatted(best.number + 1)}, cosine ${best.score}.` : nothing;
    say(`${first} ${notice}`.trim());
  });

  const progressed = () => {
    const [done, all] = [sentences.done, sentences.all.length];
    Object.assign(bar, { hidden: done === all, max: all, value: done });
    const cut = sentences.truncated ? `, ${formatted(sentences.truncated)} of them cut to the model's length` : "";
    counted.textContent = `${done < all ? `${formatted(done)} of ` : ""}${formatted(all)} sentences${cut}`;
    if (done === all || performance.now() - ranked > BETWEEN) return rank();
  };
  const read = async () => {
    const all = sentencesOf(field.value);
    const some = all.slice(0, MOST);
    notice = all.length > MOST ? `The first ${formatted(MOST)} of ${formatted(all.length)} sentences are ranked.` : "";
    view.show(field.value, some);
    list.replaceChildren();
    await sentences.read(some, progressed);
  };
  /** @param {File} [chosen] */
  const open = async (chosen) => {
    if (!chosen) return;
    if (chosen.size > LARGEST) return say(`${chosen.name}: larger than ${LARGEST / 1e6} MB; give a part of it.`);
    const text = await chosen.text();
    if (text.includes("\0")) return say(`${chosen.name}: not a text file.`);
    field.value = text;
    await read();
  };

  show();
  query.addEventListener("input", rank);
  field.addEventListener("input", () => read().catch(fail));
  file.addEventListener("change", () => open(file.files[0]).catch(fail));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return; // a dropped text goes into its field
    event.preventDefault();
    open(event.dataTransfer.files[0]).catch(fail);
  });
  await read();
  await rank();
}
