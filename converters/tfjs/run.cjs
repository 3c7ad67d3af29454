// Runs a model on a list of inputs in one backend of TF.js: node run.cjs <folder of tfjs> <model> <backend> <request> <response>
//
// The protocol of bundle/children.py. The request is a line of JSON, {runs: [{inputs: {name: {dtype, shape, offset}}, timed}], outputs}, and
// after it the arrays. The response has the same form, one answer for each run: numbers never pass through decimal text.
'use strict';
const fs = require('fs');
const path = require('path');
const {createRequire} = require('module');

const [, , packages, model, backend, request, response] = process.argv;
const from = createRequire(path.join(packages, 'package.json'));
console.log = console.info = () => {};  // TF.js greets in node
const tf = from('@tensorflow/tfjs');
from('@tensorflow/tfjs-backend-wasm');

const KINDS = {float32: Float32Array, int32: Int32Array, bool: Uint8Array};

function fromDisk(folder) {
  const json = JSON.parse(fs.readFileSync(path.join(folder, 'model.json'), 'utf8'));
  const weights = Buffer.concat(json.weightsManifest.flatMap(group => group.paths.map(file => fs.readFileSync(path.join(folder, file)))));
  return {load: async () => ({
    modelTopology: json.modelTopology,
    format: json.format,
    signature: json.signature,
    userDefinedMetadata: json.userDefinedMetadata,
    weightSpecs: json.weightsManifest.flatMap(group => group.weights),
    weightData: weights.buffer.slice(weights.byteOffset, weights.byteOffset + weights.length),
  })};
}

async function main() {
  if (!await tf.setBackend(backend)) {
    throw new Error(`TF.js has no backend ${backend} here`);
  }
  await tf.ready();
  const graph = await tf.loadGraphModel(fromDisk(model));
  const weights = new Set(Object.values(graph.weights).flat().map(tensor => tensor.id));
  const disposed = ([tensor]) => weights.has(tensor.id) || tensor.dispose();  // an output may be a weight
  const asynchronous = graph.metadata.asynchronous;
  const asked = fs.readFileSync(request);
  const end = asked.indexOf('\n');
  const {runs, outputs} = JSON.parse(asked.subarray(0, end).toString());
  const data = asked.subarray(end + 1);
  const answers = [];
  const blobs = [];
  let offset = 0;

  async function once(inputs) {
    const found = await (asynchronous ? graph.executeAsync(inputs, outputs) : graph.execute(inputs, outputs));
    const tensors = Array.isArray(found) ? found : [found];
    return Promise.all(tensors.map(async tensor => [tensor, await tensor.data()]));
  }

  for (const run of runs) {
    const inputs = {};
    const answer = {outputs: {}, error: '', seconds: null};
    try {
      for (const [name, spec] of Object.entries(run.inputs)) {
        const kind = KINDS[spec.dtype];
        const count = spec.shape.reduce((a, b) => a * b, 1);
        const values = new kind(new Uint8Array(data.subarray(spec.offset, spec.offset + count * kind.BYTES_PER_ELEMENT)).buffer);
        inputs[name] = tf.tensor(values, spec.shape, spec.dtype);
      }
      const results = await once(inputs);
      results.forEach(([tensor, values], i) => {
        const bytes = Buffer.from(new KINDS[tensor.dtype](values).buffer);  // the cpu backend may keep floats in an Int32Array
        answer.outputs[outputs[i]] = {dtype: tensor.dtype, shape: tensor.shape, offset};
        offset += bytes.length;
        blobs.push(bytes);
      });
      if (run.timed) {
        const seconds = [];
        let total = 0;
        while (seconds.length < 20 && (seconds.length < 3 || total < 1)) {  // as bundle/calls.py has it
          const start = performance.now();
          (await once(inputs)).forEach(disposed);
          seconds.push((performance.now() - start) / 1e3);
          total += seconds.at(-1);
        }
        answer.seconds = seconds.sort((a, b) => a - b)[seconds.length >> 1];
      }
      results.forEach(disposed);
    } catch (error) {
      answer.error = String(error.message || error);
    }
    Object.values(inputs).forEach(tensor => tensor.dispose());
    answers.push(answer);
    fs.writeSync(1, 'done\n');
  }
  fs.writeFileSync(response, Buffer.concat([Buffer.from(JSON.stringify(answers) + '\n'), ...blobs]));
}

main().catch(error => {
  console.error(String(error.stack || error));
  process.exit(1);
});
