// What Netron's own parser reads in a file, as JSON: node netron.mjs FOLDER_OF_NETRON FILE
import * as fs from 'fs';
import * as path from 'path';
import { pathToFileURL } from 'url';

const [folder, file] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(folder, name)).href);
const { ModelFactoryService } = await load('view.js');
const { BinaryStream } = await load('base.js');

const host = {
    environment: () => null,
    require: (id) => load(`${id}.js`),
    request: async (name, encoding) => fs.readFileSync(path.join(folder, name), encoding || null),
    exception: (error, fatal) => { if (fatal !== false) throw error; },
    event: () => {}
};
const context = {
    host,
    identifier: path.basename(file),
    stream: new BinaryStream(new Uint8Array(fs.readFileSync(file))),
    entries: new Map(),
    require: host.require,
    request: host.request,
    error: host.exception
};
const model = await new ModelFactoryService(host).open(context);
const [graph] = model.modules || model.graphs;
const nodes = graph.nodes.map((node) => node.type.name);
const names = (list) => list.map((one) => one.name);
console.log(JSON.stringify({
    format: model.format, nodes, inputs: names(graph.inputs), outputs: names(graph.outputs)
}));
