import {embed, load} from './embed.js';

const element = id => document.getElementById(id);

function show(sentences, embeddings) {
  const table = element('similarities');
  const cell = (row, tag, text, kind) => {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  table.replaceChildren();
  const head = table.insertRow();
  cell(head, 'th', '', 'sentence');
  sentences.forEach((_, i) => cell(head, 'th', i + 1, 'number'));
  sentences.forEach((sentence, i) => {
    const row = table.insertRow();
    cell(row, 'th', `${i + 1}  ${sentence}`, 'sentence');
    embeddings.forEach(other => {
      const similarity = embeddings[i].reduce((sum, x, k) => sum + x * other[k], 0);
      cell(row, 'td', similarity.toFixed(2)).style.background = `rgb(31 111 235 / ${Math.max(0, similarity) * .75})`;
    });
  });
}

async function compare() {
  const status = element('status');
  element('run').disabled = true;
  status.className = '';
  try {
    const sentences = element('sentences').value.split('\n').map(line => line.trim()).filter(Boolean);
    if (!sentences.length) throw new Error('there is no sentence');
    const backend = element('backend').value;
    status.textContent = `Loading ${backend} …`;
    await load(backend);
    const start = performance.now();
    const embeddings = await embed(sentences, backend);
    show(sentences, embeddings);
    status.textContent = `${sentences.length} sentences in ${(performance.now() - start).toFixed(0)} ms on ${tf.getBackend()}`;
  } catch (error) {
    status.className = 'error';
    status.textContent = error.message;
  }
  element('run').disabled = false;
}

element('run').onclick = compare;
window.embed = embed;  // for the console and the tests
await compare();
