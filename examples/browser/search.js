import {embed, load} from './embed.js';

const BATCH = 16, SHOWN = 6;
const element = id => document.getElementById(id);
const documents = await (await fetch('corpus.json')).json();  // [[title, text], ...]
const embeddings = [];

function show(query, ranked) {
  element('results').replaceChildren(...ranked.map(({similarity, document: [title, text]}) => {
    const row = document.createElement('li');
    row.append(...[['b', title], ['span', text], ['meter', ''], ['i', similarity.toFixed(2)]].map(([tag, words]) => {
      const made = document.createElement(tag);
      made.textContent = words;
      return made;
    }));
    row.querySelector('meter').value = Math.max(0, similarity);
    return row;
  }));
  element('results').dataset.query = query;
}

async function search() {
  const query = element('query').value.trim(), start = performance.now();
  if (!query) return;
  const [asked] = await embed([query]);
  if (query !== element('query').value.trim()) return;  // the query has changed meanwhile
  const ranked = documents.map((document, i) => ({document, similarity: asked.reduce((sum, x, k) => sum + x * embeddings[i][k], 0)}));
  ranked.sort((a, b) => b.similarity - a.similarity);
  show(query, ranked.slice(0, SHOWN));
  element('status').textContent = `${documents.length} texts searched in ${(performance.now() - start).toFixed(0)} ms`;
}

await load('wasm');
documents.sort(([, a], [, b]) => a.length - b.length);  // a batch is as long as its longest text
for (let i = 0; i < documents.length; i += BATCH) {
  embeddings.push(...await embed(documents.slice(i, i + BATCH).map(([, text]) => text)));
  element('status').textContent = `${embeddings.length} of ${documents.length} texts encoded`;
}
element('query').oninput = search;
element('query').disabled = false;
await search();
