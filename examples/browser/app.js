import {Tokenizer} from './tokenizers.min.mjs';

const MAX_TOKENS = 256;
const element = id => document.getElementById(id);
const json = async url => (await fetch(url)).json();

tf.wasm.setWasmPaths('./');
const tokenizer = new Tokenizer(await json('tokenizer.json'), await json('tokenizer_config.json'));
let model;

async function load(backend) {
  if (model && tf.getBackend() === backend) return;
  model?.dispose();
  if (!await tf.setBackend(backend)) throw new Error(`this browser has no ${backend}`);
  await tf.ready();
  model = await tf.loadGraphModel('model/model.json');
}

// sentences -> {shape: [b, s], ids, mask}, padded to the longest; of one that is too long the end is cut, and its last token stays.
function tokenize(sentences) {
  const rows = sentences.map(sentence => tokenizer.encode(sentence).ids).map(
      ids => ids.length > MAX_TOKENS ? [...ids.slice(0, MAX_TOKENS - 1), ids.at(-1)] : ids);
  const length = Math.max(...rows.map(ids => ids.length));
  const ids = new Int32Array(rows.length * length), mask = new Int32Array(rows.length * length);
  rows.forEach((row, i) => {
    ids.set(row, i * length);
    mask.fill(1, i * length, i * length + row.length);
  });
  return {shape: [rows.length, length], ids, mask};
}

// sentences -> a Float32Array of length 1 for each
async function embed(sentences, backend = 'wasm') {
  await load(backend);
  const {shape, ids, mask} = tokenize(sentences);
  const embedding = tf.tidy(() => model.execute(
      {input_ids: tf.tensor2d(ids, shape, 'int32'), attention_mask: tf.tensor2d(mask, shape, 'int32')}, 'embedding'));
  const values = await embedding.data();
  embedding.dispose();
  const width = values.length / sentences.length;
  return sentences.map((_, i) => values.slice(i * width, (i + 1) * width));
}

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
window.embed = embed;  // for the console, and for tests
await compare();
