'use strict';
const element = id => document.getElementById(id);
const bytes = id => Uint8Array.from(atob(element(id).textContent), c => c.charCodeAt(0));
const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
const model = JSON.parse(element('model').textContent), page = JSON.parse(element('page').textContent);
const {asynchronous, inputs: specs, outputs: outputSpecs} = model.userDefinedMetadata;
const inputs = model.signature.inputs, outputs = Object.keys(model.signature.outputs);
const KINDS = {DT_FLOAT: 'float32', DT_INT32: 'int32', DT_BOOL: 'bool'};
const NUMBERS = 200, ROWS = 8, BARS = 10;  // shown of an output

const wasm = URL.createObjectURL(new Blob([bytes('wasm')], {type: 'application/wasm'}));
tf.wasm.setWasmPaths(Object.fromEntries(
    ['', '-simd', '-threaded-simd'].map(kind => [`tfjs-backend-wasm${kind}.wasm`, wasm])));

let graph;
async function load(backend) {
  if (graph && tf.getBackend() === backend) return;
  graph?.dispose();
  graph = undefined;
  if (!await tf.setBackend(backend)) throw new Error(`This browser has no ${backend}. Choose another backend.`);
  await tf.ready();
  graph = await tf.loadGraphModel(tf.io.fromMemory({...model, weightData: bytes('weights').buffer}));
}

// {name: {shape, values}} -> {answers: {name: {shape, values}}, milliseconds, backend}
async function run(given, backend = element('backend').value) {
  await load(backend);
  const tensors = {};
  for (const [name, {shape, values}] of Object.entries(given)) tensors[name] = tf.tensor(values, shape, KINDS[inputs[name].dtype]);
  try {
    const start = performance.now();
    const found = await (asynchronous ? graph.executeAsync(tensors, outputs) : graph.execute(tensors, outputs));
    const answers = {};
    for (const [i, tensor] of [found].flat().entries()) {
      answers[outputs[i]] = {shape: tensor.shape, values: Array.from(await tensor.data())};
      if (!Object.values(graph.weights).flat().includes(tensor)) tensor.dispose();  // an output may be a weight
    }
    return {answers, milliseconds: performance.now() - start, backend: tf.getBackend()};
  } finally {
    Object.values(tensors).forEach(tensor => tensor.dispose());
  }
}

// ---- inputs: each kind is {show(), read() -> {name: {shape, values}}} ----

const sizes = ({tensorShape}) => (tensorShape.dim ?? []).map(({size}) => +(size ?? 0));  // -1: any
const sizesOf = name => sizes(inputs[name]);
const variablesOf = name => (specs[name] ?? '').replace(/^[^[]*\[|\]$/g, '').split(',').map(text => text.trim());
const labelled = (id, name) => make('label', {htmlFor: id}, `${name} `, make('span', {className: 'shape'}, specs[name] ?? ''));

const NAMED = new Map([['NaN', NaN], ['Infinity', Infinity], ['-Infinity', -Infinity]]);  // numbers that JSON lacks

// Nested arrays -> {shape, values}, or an error that says where they are not of the input's kind.
function tensorOf(name, nested) {
  const shape = [], values = [], {dtype} = inputs[name];
  for (let level = nested; Array.isArray(level); level = level[0]) shape.push(level.length);
  const isRight = {DT_FLOAT: x => typeof x === 'number', DT_BOOL: x => typeof x === 'boolean',
                   DT_INT32: x => Number.isInteger(x) && Math.abs(x) <= 2 ** 31}[dtype];
  const walk = (level, [size, ...rest]) => {
    if (size === undefined) {
      const value = dtype === 'DT_FLOAT' ? NAMED.get(level) ?? level : level;
      if (!isRight(value)) throw new Error(`Input ${name}: ${JSON.stringify(level)} is no ${KINDS[dtype]}.`);
      values.push(value);
    } else {
      if (!Array.isArray(level) || level.length !== size) throw new Error(`Input ${name}: its rows have different lengths.`);
      level.forEach(inner => walk(inner, rest));
    }
  };
  walk(nested, shape);
  return {shape, values};
}

// Sizes that the input does not take, or that differ between inputs for one dimension variable, in words.
function check(given) {
  const known = {};
  for (const [name, {shape}] of Object.entries(given)) {
    const sizes = sizesOf(name), variables = variablesOf(name);
    if (sizes.length !== shape.length || sizes.some((size, i) => size >= 0 && size !== shape[i])) {
      throw new Error(`Input ${name} takes ${specs[name]}; given are the sizes [${shape}].`);
    }
    for (const [i, variable] of sizes.length ? variables.entries() : []) {
      if (!/^[A-Za-z_]\w*$/.test(variable) || variable === '_') continue;
      if (shape[i] > page.limits[variable]) {
        throw new Error(`Input ${name}: ${variable} is ${shape[i]}, and the model takes at most ${page.limits[variable]}.`);
      }
      const before = known[variable] ??= {name, size: shape[i]};
      if (before.size !== shape[i]) {
        throw new Error(`${variable} is ${before.size} in input ${before.name} and ${shape[i]} in input ${name}; give both one size.`);
      }
    }
  }
}

function random(name) {
  const draw = {DT_FLOAT: () => +(2 * Math.random() - 1).toFixed(3), DT_INT32: () => Math.floor(10 * Math.random()),
                DT_BOOL: () => Math.random() < .5}[inputs[name].dtype];
  const nested = ([first, ...rest]) => first === undefined ? draw() : Array.from({length: first < 0 ? 2 : first}, () => nested(rest));
  return nested(sizesOf(name));
}

function typedInput(name, id) {
  const area = make('textarea', {id, spellcheck: false});
  return {
    area,
    show() { area.value = JSON.stringify(page.examples[name] ?? random(name)); },
    read() {
      let nested;
      try {
        nested = JSON.parse(area.value);
      } catch (error) {
        throw new Error(`Input ${name}: this is not JSON (${error.message}). Give ${specs[name]} as nested lists, like the example.`);
      }
      return {[name]: tensorOf(name, nested)};
    },
  };
}

function tensorInput(name) {
  const id = `input-${name}`, field = typedInput(name, id);
  element('inputs').append(labelled(id, name), field.area);
  return field;
}

// [b,] height, width, channels: 1, 3 or 4
function isImage(name) {
  const sizes = sizesOf(name), [height, width, channels] = sizes.slice(-3);
  return [3, 4].includes(sizes.length) && inputs[name].dtype !== 'DT_BOOL' && [1, 3, 4].includes(channels) &&
      [height, width].every(size => size < 0 || size >= 8) && (sizes.length === 3 || Math.abs(sizes[0]) === 1);
}

const SCALES = {'0 to 1': x => x / 255, '-1 to 1': x => x / 127.5 - 1, '0 to 255': x => x};
function imageInput(name) {
  const id = `input-${name}`, sizes = sizesOf(name), [height, width, channels] = sizes.slice(-3);
  const canvas = make('canvas', {width: width < 0 ? 128 : width, height: height < 0 ? 128 : height});
  const picture = canvas.getContext('2d', {willReadFrequently: true});
  const file = make('input', {id, type: 'file', accept: 'image/*'});
  const scale = make('select', {id: `scale-${name}`}, ...Object.keys(SCALES).map(text => make('option', {}, text)));
  if (inputs[name].dtype === 'DT_INT32') scale.value = '0 to 255';
  const place = make('div', {className: 'drop'}, canvas, make('div', {}, 'Drop an image here, or choose one.', make('br'), file),
                     make('span', {}, 'Values ', scale));
  const draw = async chosen => {
    if (!chosen) return;
    let bitmap;
    try {
      bitmap = await createImageBitmap(chosen);
    } catch {
      return fail(new Error(`Input ${name}: ${chosen.name} is no image that this browser reads.`));
    }
    if (width < 0) canvas.width = bitmap.width;
    if (height < 0) canvas.height = bitmap.height;
    picture.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    element('status').textContent = `${chosen.name} is in place. Run the model.`;
    element('status').className = '';
  };
  file.onchange = () => draw(file.files[0]);
  place.ondragover = event => { event.preventDefault(); place.classList.add('over'); };
  place.ondragleave = () => place.classList.remove('over');
  place.ondrop = event => { event.preventDefault(); place.classList.remove('over'); draw(event.dataTransfer.files[0]); };
  const numbers = typedInput(name, `numbers-${name}`), typed = make('input', {type: 'checkbox', id: `typed-${name}`});
  numbers.area.ariaLabel = `${name} as JSON`;
  typed.onchange = () => {
    place.hidden = typed.checked;
    numbers.area.hidden = !typed.checked;
    if (typed.checked && !numbers.area.value) numbers.show();
  };
  typed.onchange();
  element('inputs').append(labelled(id, name), place, numbers.area, make('label', {className: 'switch'}, typed, ' Not an image: type numbers as JSON'));
  return {
    show() {  // a ramp of colours
      if (typed.checked) numbers.show();
      const {width: w, height: h} = canvas, data = picture.createImageData(w, h);
      for (let i = 0; i < w * h; i++) data.data.set([255 * (i % w) / w, 255 * Math.floor(i / w) / h, 128, 255], 4 * i);
      picture.putImageData(data, 0, 0);
    },
    read() {
      if (typed.checked) return numbers.read();
      const {width: w, height: h} = canvas, {data} = picture.getImageData(0, 0, w, h), values = [];
      for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.subarray(i, i + 4);
        const colours = channels === 1 ? [.299 * r + .587 * g + .114 * b] : [r, g, b, a].slice(0, channels);
        for (const x of colours) values.push(inputs[name].dtype === 'DT_INT32' ? Math.round(SCALES[scale.value](x)) : SCALES[scale.value](x));
      }
      return {[name]: {shape: [...sizes.slice(0, -3).map(() => 1), h, w, channels], values}};
    },
  };
}

// The integers that a tokenizer makes of text: ids, and beside them an attention mask and token types.
const isTokens = name => inputs[name].dtype === 'DT_INT32' && [1, 2].includes(sizesOf(name).length);
function textInput(names) {
  const id = 'input-text', area = make('textarea', {id, className: 'text'});
  const one = sizesOf(names[0]).length === 1 || sizesOf(names[0])[0] === 1;
  element('inputs').append(
      make('label', {htmlFor: id}, 'Text ', make('span', {className: 'shape'}, one ? '' : 'one in each line ', `→ ${names.join(', ')}`)), area);
  return {
    show() { area.value = page.text; },
    async read() {
      const lines = one ? [area.value] : area.value.split('\n').filter(line => line.trim());
      if (!lines.some(line => line.trim())) throw new Error('There is no text to read. Type some.');
      const fixed = sizesOf(names[0]).at(-1), most = Math.min(fixed < 0 ? Infinity : fixed, page.tokens ?? Infinity, page.limits[variablesOf(names[0]).at(-1)] ?? Infinity);
      const {encode} = await tokenizer();
      // Of what is too long the end is cut, and its last token, which may be a mark, stays.
      const rows = lines.map(encode).map(ids => ids.length > most ? [...ids.slice(0, most - 1), ids.at(-1)] : ids);
      const length = fixed < 0 ? Math.max(...rows.map(ids => ids.length)) : fixed;
      const padded = of => rows.flatMap(ids => Array.from({length}, (_, i) => of(ids, i)));
      const fill = name => /mask/i.test(name) ? (ids, i) => +(i < ids.length) : /type|segment/i.test(name) ? () => 0 : (ids, i) => ids[i] ?? page.padding;
      return Object.fromEntries(names.map(
          name => [name, {shape: sizesOf(name).length === 1 ? [length] : [rows.length, length], values: padded(fill(name))}]));
    },
  };
}

let made;
function tokenizer() {
  return made ??= (async () => {
    const source = URL.createObjectURL(new Blob([new TextDecoder().decode(bytes('tokenizers'))], {type: 'text/javascript'}));
    const found = new (await import(source)).Tokenizer(page.tokenizer, {});
    return {encode: text => found.encode(text).ids};
  })();
}

// ---- outputs ----

const shown = x => Number.isInteger(x) || typeof x === 'boolean' ? String(x) : +x.toPrecision(6) + '';
const isShare = row => row.every(x => x >= 0 && x <= 1.0001) && Math.abs(row.reduce((sum, x) => sum + x, 0) - 1) < 1e-2;

function show(name, {shape, values}) {
  const spec = outputSpecs[name], given = `[${shape}]`, described = model.signature.outputs[name];
  const section = make('section', {}, make('h2', {}, `${name} `, make('span', {className: 'shape'}, spec.endsWith(given) ? spec : `${spec} = ${given}`)));
  section.dataset.name = name;
  const width = shape.at(-1) ?? 1, rows = [];
  for (let i = 0; i < values.length && rows.length < ROWS; i += width) rows.push(values.slice(i, i + width));
  const classes = width > 1 && described.dtype === 'DT_FLOAT' && sizes(described).at(-1) > 0, shares = classes && rows.every(isShare);
  const labels = classes && page.labels.length === width ? page.labels : undefined;
  if (shares || labels) {
    for (const [i, row] of rows.entries()) {
      if (rows.length > 1) section.append(make('p', {className: 'shape'}, `Row ${i + 1} of ${values.length / width}`));
      const best = [...row.keys()].sort((i, j) => row[j] - row[i]).slice(0, BARS);
      section.append(make('div', {className: 'bars'}, ...best.flatMap(i => [
        make('span', {}, labels?.[i] ?? `${i}`),
        make('i', {style: shares ? `width: ${100 * row[i]}%` : 'visibility: hidden'}),
        make('b', {}, shares ? `${(100 * row[i]).toFixed(1)} %` : shown(row[i])),
      ])));
    }
  }
  if (values.length === 1) section.append(make('p', {className: 'number'}, shown(values[0])));
  const numbers = make('details', {open: values.length > 1 && !section.querySelector('.bars')}, make('summary', {}, 'Numbers'),
                       make('pre', {}, rows.map(row => row.slice(0, NUMBERS).map(shown).join(' ')).join('\n') +
                           (width > NUMBERS || values.length > rows.length * width ? ' …' : '')));
  section.append(numbers);
  return section;
}

function fail(error) {
  element('status').className = 'error';
  element('status').textContent = error.message;
}

const names = Object.keys(inputs), tokens = page.tokenizer ? names.filter(isTokens) : [];
const fields = [...(tokens.length ? [textInput(tokens)] : []),
                ...names.filter(name => !tokens.includes(name)).map(name => (isImage(name) ? imageInput : tensorInput)(name))];
element('example').onclick = () => fields.forEach(field => field.show());
element('form').onsubmit = async event => {
  event.preventDefault();
  const status = element('status');
  status.className = '';
  status.textContent = 'Running …';
  element('run').disabled = true;
  element('outputs').replaceChildren();
  try {
    const given = Object.assign({}, ...await Promise.all(fields.map(field => field.read())));
    check(given);
    const {answers, milliseconds, backend} = await run(given);
    element('outputs').append(...Object.entries(answers).map(([name, answer]) => show(name, answer)));
    status.textContent = `${milliseconds.toFixed(1)} ms on ${backend}`;
  } catch (error) {
    fail(error);
  }
  element('run').disabled = false;
};
element('example').click();
element('status').textContent = 'Ready.';
