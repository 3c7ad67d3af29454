// The greedy loop over a folder that generation.save wrote for ONNX Runtime GenAI. Its
// genai_config.json says what the model is called and how its cache is made.
import * as ort from './ort.wasm.min.mjs';
import {Tokenizer} from './tokenizers.min.mjs';

const element = id => document.getElementById(id);
const json = async file => (await fetch(`model/${file}`)).json();
const bytes = async file => new Uint8Array(await (await fetch(`model/${file}`)).arrayBuffer());

ort.env.wasm.numThreads = 1;  // several need headers of the server (cross-origin isolation)
const {model, search} = await json('genai_config.json');
const {decoder} = model;
const tokenizer = new Tokenizer(await json('tokenizer.json'), await json('tokenizer_config.json'));
const session = await ort.InferenceSession.create(await bytes(decoder.filename), {executionProviders: ['wasm']});

const layers = [...Array(decoder.num_hidden_layers).keys()];
const named = (pattern, layer) => pattern.replace('%d', layer);
const CACHES = ['key', 'value'];

function emptyCache() {
  const shape = [1, decoder.num_key_value_heads, search.max_length, decoder.head_size];
  const cache = {};
  for (const kind of CACHES) {
    for (const layer of layers) {
      const name = named(decoder.inputs[`past_${kind}_names`], layer);
      const sizes = session.inputMetadata.find(input => input.name === name).shape;
      cache[name] = new ort.Tensor('float32', new Float32Array(shape.reduce((a, b) => a * b)), sizes);
    }
  }
  return cache;
}

const integers = numbers => new ort.Tensor('int32', Int32Array.from(numbers), [1, numbers.length]);

// Reads tokens at the positions from `read` on: the most probable next token, and the cache.
async function step(tokens, read, cache) {
  const results = await session.run({
    ...cache,
    [decoder.inputs.input_ids]: integers(tokens),
    [decoder.inputs.position_ids]: integers(tokens.map((_, i) => read + i)),
  });
  const logits = results[decoder.outputs.logits].data.subarray(-model.vocab_size);
  const after = {};
  for (const kind of CACHES) {
    for (const layer of layers) {
      after[named(decoder.inputs[`past_${kind}_names`], layer)] = results[named(decoder.outputs[`present_${kind}_names`], layer)];
    }
  }
  return [logits.indexOf(logits.reduce((a, b) => Math.max(a, b))), after];
}

// prompt -> {text: what follows, seconds: when each token was there, after the first one}
window.generate = async (prompt, most) => {
  const tokens = [], times = [];
  let given = tokenizer.encode(prompt).ids, read = 0, cache = emptyCache(), token;
  while (tokens.length < most && read + given.length <= search.max_length) {
    [token, cache] = await step(given, read, cache);
    if (model.eos_token_id.includes(token)) break;
    read += given.length;
    tokens.push(token);
    times.push(performance.now());
    given = [token];
    element('text').textContent = prompt + tokenizer.decode(tokens);
    await (globalThis.scheduler?.yield?.() ?? new Promise(requestAnimationFrame));  // the page may show it
  }
  const seconds = times.map(time => (time - times[0]) / 1e3);
  element('status').textContent = `${tokens.length} tokens, ${((tokens.length - 1) / seconds.at(-1)).toFixed(0)} a second`;
  return {text: tokenizer.decode(tokens), seconds};
};

element('form').onsubmit = async event => {
  event.preventDefault();
  element('run').disabled = true;
  await generate(element('prompt').value, search.max_length);
  element('run').disabled = false;
};
element('run').disabled = false;
element('status').textContent = 'Ready.';
