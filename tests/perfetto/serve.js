// node serve.js UI_FOLDER SOCKET: Perfetto's trace processor, built for browsers, on a Unix socket.
// The engine is a web worker that is given a port; here it runs in a worker's clothes, and what
// comes from a connection goes into that port, byte for byte, and back.
"use strict";
const fs = require("fs");
const net = require("net");
const path = require("path");
const vm = require("vm");

const [folder, socket] = process.argv.slice(2);
let connection = null;
const port = { postMessage: (bytes) => connection && connection.write(Buffer.from(bytes)) };

global.self = { location: { href: "http://localhost/engine_bundle.js" } };
global.WorkerGlobalScope = Object;
global.XMLHttpRequest = class {
  open(_, url) {
    this.name = path.basename(url);
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, this.name))).buffer;
  }
};
delete global.process; // or the engine believes that it runs in node
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
self.onmessage({ data: port });

setTimeout(() => {
  const server = net.createServer((next) => {
    connection = next;
    next.on("data", (data) => port.onmessage({ data: new Uint8Array(data) }));
    next.on("error", () => {});
  });
  server.listen(socket, () => console.log("ready"));
}, 0);
