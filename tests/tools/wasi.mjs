// Runs a program that was compiled for WebAssembly and WASI, in this directory: node wasi.mjs PROGRAM ARGUMENTS...
import { readFileSync } from 'node:fs';
import { WASI } from 'node:wasi';

const [program, ...rest] = process.argv.slice(2);
const wasi = new WASI({ version: 'preview1', args: [program, ...rest], env: process.env, preopens: { '.': '.' } });
const module = await WebAssembly.compile(readFileSync(program));
process.exit(wasi.start(await WebAssembly.instantiate(module, { wasi_snapshot_preview1: wasi.wasiImport })));
