import {Tokenizer} from './tokenizers.min.mjs';

const MAX_TOKENS = 256;
const json = async url => (await fetch(url)).json();

tf.wasm.setWasmPaths('./');
const tokenizer = new Tokenizer(await json('tokenizer.json'), await json('tokenizer_config.json'));
let model;

export async function load(backend) {
  if (model && tf.getBackend() === backend) return;
  model?.dispose();
  if (!await tf.setBackend(backend)) throw new Error(`this browser has no ${backend}`);
  await tf.ready();
  model = await tf.loadGraphModel('model/model.json');
}

// sentences -> {shape: [b, s], ids, mask}, padded to the longest. A sentence that is too long is truncated before its last token.
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

// sentences -> for each a Float32Array whose norm is 1
export async function embed(sentences, backend = 'wasm') {
  await load(backend);
  const {shape, ids, mask} = tokenize(sentences);
  const embedding = tf.tidy(() => model.execute(
      {input_ids: tf.tensor2d(ids, shape, 'int32'), attention_mask: tf.tensor2d(mask, shape, 'int32')}, 'embedding'));
  const values = await embedding.data();
  embedding.dispose();
  const width = values.length / sentences.length;
  return sentences.map((_, i) => values.slice(i * width, (i + 1) * width));
}
