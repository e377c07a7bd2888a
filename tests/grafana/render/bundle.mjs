// node bundle.mjs FOLDER: one script of all that the pictures need, into FOLDER/bundle.js.
import { createRequire } from 'node:module';
import path from 'node:path';
const here = import.meta.dirname, [folder] = process.argv.slice(2);
const modules = path.join(folder, 'node_modules');
const esbuild = createRequire(path.join(folder, 'x.js'))('esbuild');
await esbuild.build({
  entryPoints: [path.join(here, 'main.tsx')], bundle: true, outfile: path.join(folder, 'bundle.js'), minify: true, format: 'iife',
  nodePaths: [modules], logLevel: 'error', define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  alias: { 'grafana-table': path.join(modules, '@grafana/ui/dist/esm/components/Table/TableNG/TableNG.mjs') },
  loader: { '.svg': 'dataurl', '.woff2': 'dataurl', '.woff': 'empty', '.ttf': 'dataurl', '.png': 'dataurl' },
});
