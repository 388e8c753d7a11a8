// Tree of the user's lines for a selected part of the recording. The data has the line of each sample, what it did, and the
// limits (report/src/answer/line_tree.rs). This file adds them up and chooses the rows like tree.rs, rows.rs and row.rs there;
// report/tests/browser.py compares both for the whole recording. It does not access the page.
const COMPILED_LINE = 1, COMPILATION = 2, NODE_FIELDS = 5;

const shareOf = (part, whole) => (whole ? part / whole * 100 : 0);
const addUp = (counts, [key, weight]) => counts.set(key, (counts.get(key) || 0) + weight);

class LineTree {
  /** `textOf` returns the source of a file's line. */
  constructor(data, stacks, textOf) {
    const { nodes } = data.lines;
    Object.assign(this, { data, stacks, textOf, limits: data.lines.limits, nodes: [] });
    for (let offset = 0; offset < nodes.length; offset += NODE_FIELDS) {
      const [up, kind, file, line, f] = nodes.slice(offset, offset + NODE_FIELDS), node = { up, kind, file, line, f, below: [] };
      if (up >= 0) this.nodes[up].below.push(node);
      this.nodes.push(node);
    }
  }

  /** Returns the answer for the parts of the chosen threads in the range: the rows, and the time below none of them. */
  select(isChosen, range) {
    const { nodes, stacks: { parts }, data: { lines: { leaves } } } = this, slices = range || [0, Infinity];
    for (const node of nodes) Object.assign(node, { total: 0, parts: new Map(), calls: new Map(), runs: new Set() });
    for (let offset = 0; offset < parts.length; offset += PART_FIELDS) {
      if (parts[offset] < slices[0] || parts[offset] >= slices[1] || (isChosen && !isChosen[parts[offset + 1]])) continue;
      const leaf = parts[offset + 7] * LEAF_FIELDS, [at, word, call, run] = leaves.slice(leaf, leaf + LEAF_FIELDS), node = nodes[at], weight = this.stacks.amount(offset);
      node.total += weight;
      addUp(node.parts, [word, weight]);
      if (call >= 0) addUp(node.calls, [call, weight]);
      if (run >= 0) node.runs.add(run);
    }
    const elsewhere = [nodes[0].total, this.named(nodes[0].parts)];
    for (let index = nodes.length - 1; index > 0; index--) this.merge(nodes[nodes[index].up], nodes[index]);
    return { weight: nodes[0].total, rows: this.shown(this.mergeImports(this.choose())), elsewhere };
  }

  merge(into, node) {
    into.total += node.total;
    for (const entry of node.parts) addUp(into.parts, entry);
    for (const entry of node.calls) addUp(into.calls, entry);
  }

  /** Returns words with their weights, the heaviest first. */
  named(counts) {
    const words = [...counts].map(([word, weight]) => [this.data.lines.words[word], weight]);
    return words.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  }

  /** Returns the nodes that may be rows below a node: lines, and a function instead of its lines if they are many and small. */
  rowsBelow(node) {
    if (node.lines) return node.lines;
    const { limits } = this, all = this.nodes[0].total, functions = new Map(), below = [], sum = (lines) => lines.reduce((total, line) => total + line.total, 0);
    for (const child of node.below.filter(({ total }) => total)) {
      const key = `${child.f}:${child.file}:${child.kind}`;
      if (child.kind === COMPILATION) { below.push(child); continue; }
      if (!functions.has(key)) functions.set(key, []);
      functions.get(key).push(child);
    }
    for (const lines of functions.values()) {
      const total = sum(lines), shown = sum(lines.filter((line) => shareOf(line.total, all) >= limits.percent && shareOf(line.total, node.total) >= limits.parentPercent));
      const isOneRow = lines.length > limits.lines && shareOf(shown, total) < limits.shownLinesPercent && shareOf(total, all) >= limits.percent;
      if (!isOneRow) { below.push(...lines); continue; }
      const numbers = lines.map(({ line }) => line), row = { ...lines[0], line: Math.min(...numbers), last: Math.max(...numbers), total: 0, parts: new Map(), calls: new Map(), lines };
      for (const line of lines) this.merge(row, line);
      below.push(row);
    }
    return below;
  }

  /** Merges a line with its callee of the same kind while that has nearly all of its time. */
  chain(node) {
    const chain = [node];
    for (;;) {
      const last = chain[chain.length - 1], callee = last.lines || last.kind === COMPILATION ? null : this.rowsBelow(last).sort((a, b) => b.total - a.total)[0];
      if (!callee || callee.lines || callee.kind !== last.kind || shareOf(callee.total, last.total) < this.limits.chainPercent) return chain;
      chain.push(callee);
    }
  }

  /** Returns the widest rows, each followed by the rows below it. */
  choose() {
    const { limits } = this, all = this.nodes[0].total, chosen = [], candidates = this.rowsBelow(this.nodes[0]).map((node) => ({ node, depth: 0, parent: null }));
    while (candidates.length && chosen.length < limits.rows) {
      candidates.sort((a, b) => a.node.total - b.node.total || b.depth - a.depth);
      const { node, depth, parent } = candidates.pop(), share = shareOf(node.total, all);
      if (share < limits.percent) {
        if (chosen.length >= limits.fewRows) break;
        if (share < (depth ? limits.childPercent : limits.rootPercent)) continue;
      }
      if (parent && shareOf(node.total, parent.total) < limits.parentPercent) continue;
      const chain = this.chain(node), inner = chain[chain.length - 1], row = { chain, inner, depth, parent, total: node.total, parts: inner.parts, line: inner.line };
      chosen.push(row);
      candidates.push(...this.rowsBelow(inner).map((below) => ({ node: below, depth: depth + 1, parent: row })));
    }
    const ordered = (parent) => chosen.filter((row) => row.parent === parent).flatMap((row) => [row, ...ordered(row)]);
    for (const row of chosen) this.describe(row, chosen.filter(({ parent }) => parent === row));
    return ordered(null);
  }

  /** Adds the texts of a row to it. `below` are the chosen rows below it. */
  describe(row, below) {
    const { chain, inner, total } = row, { limits, data: { lines } } = this, sum = (rows) => rows.reduce((all, { total: weight }) => all + weight, 0);
    const nodes = below.map((other) => other.chain[0]), hidden = this.rowsBelow(inner).filter((node) => node.kind !== COMPILATION && !nodes.some((other) => other === node || (other.lines && node.lines && other.f === node.f && other.file === node.file && other.kind === node.kind)));
    const isHidden = shareOf(sum(hidden), inner.total) >= limits.halfPercent && hidden.length >= limits.hiddenLines;
    row.hidden = inner.lines ? inner.lines.length : isHidden ? hidden.length : 0;
    row.compilations = inner.below.filter(({ kind, total: weight }) => kind === COMPILATION && weight).length;
    row.isOneFile = chain.every(({ file }) => file === inner.file);
    row.isCompilation = inner.kind === COMPILATION;
    row.path = row.isCompilation ? lines.compiled[inner.f][1] : this.data.files[inner.file].path;
    if (row.isCompilation) row.text = lines.compiled[inner.f][0] + (inner.runs.size > 1 ? ` \u00d7${inner.runs.size}` : '');
    else if (inner.lines) row.text = lines.functions[inner.f];
    else {
      const source = row.isOneFile && shareOf(sum(below), total) >= limits.halfPercent ? chain[0] : inner;
      row.source = this.textOf(source.file, source.line).trim().replace(/\s+/g, ' ');
      row.text = row.source || `(${lines.functions[inner.f]})`;
    }
  }

  /** Merges imports with small shares into one row. */
  mergeImports(rows) {
    const { limits } = this, all = this.nodes[0].total;
    const imports = rows.filter((row, index) => !row.depth && row.inner.kind !== COMPILED_LINE && !row.inner.lines && row.chain.length === 1 && /^(import |from)/.test(row.source || '')
      && shareOf(row.total, all) < limits.importPercent && !(rows[index + 1] || row).depth);
    if (imports.length <= limits.imports) return rows;
    const [first] = imports, total = imports.reduce((sum, row) => sum + row.total, 0), parts = new Map();
    for (const row of imports) for (const entry of row.parts) addUp(parts, entry);
    const [line, ...more] = imports.filter(({ path }) => path === first.path).map((row) => row.line).sort((a, b) => a - b);
    const merged = { ...first, total, parts, line, more, text: `${imports.length} imports`, isImports: true }, others = rows.filter((row) => !imports.includes(row));
    const at = others.findIndex((row) => !row.depth && row.total < total);
    others.splice(at < 0 ? others.length : at, 0, merged);
    return others;
  }

  shown(rows) {
    const base = (path) => path.slice(path.lastIndexOf('/') + 1), paths = new Map(), ambiguous = new Set(['__init__.py']);
    for (const { path } of rows) {
      if (!paths.has(base(path))) paths.set(base(path), path);
      if (paths.get(base(path)) !== path) ambiguous.add(base(path));
    }
    const name = (path) => (ambiguous.has(base(path)) ? path.split('/').slice(-2).join('/') : base(path));
    const isLast = (row, index) => !rows.slice(index + 1).some(({ parent }) => parent === row.parent);
    const branches = (row, index) => {
      if (!row.parent) return '';
      let text = isLast(row, index) ? '└ ' : '├ ';
      for (let { parent } = row; parent.parent; { parent } = parent) text = (isLast(parent, rows.indexOf(parent)) ? '  ' : '│ ') + text;
      return text;
    };
    return rows.map((row, index) => {
      const { inner, line, path } = row, at = inner.file < 0 ? null : [inner.file, line], isCompiled = inner.kind === COMPILED_LINE;
      const loop = isCompiled && this.data.lines.advice.find(([file, number]) => file === inner.file && number >= line && number <= (inner.last || line));
      return { branches: branches(row, index), label: this.label(row, name), text: row.text, code: !row.isCompilation && !inner.lines && !row.isImports, at, path, weight: row.total, of: this.ofIt(row), advice: loop ? loop[2] : null };
    });
  }

  label({ chain, inner, line, parent, path, more, isOneFile, isCompilation, isImports }, name) {
    const pathOf = (node) => this.data.files[node.file].path, position = line ? `${name(path)}:${line}` : name(path), [outer] = chain;
    if (isCompilation) return position;
    if (isImports) return [position, ...more].join(',');
    const isParentFile = parent && isOneFile && parent.path === path, place = isParentFile ? `:${outer.line}` : `${name(pathOf(outer))}:${outer.line}`;
    if (inner.last) return `${isParentFile ? '' : name(path)}:${line}-${inner.last}`;
    // A lambda may be on its caller's line.
    if (chain.length === 1 || (outer.file === inner.file && outer.line === line)) return place;
    const innermost = isOneFile ? line : position, label = `${place}${chain.length > 2 ? '»' : '›'}${innermost}`;
    return isOneFile || label.length <= this.data.lines.labelColumns ? label : `»${innermost}`;
  }

  /** Describes what a row's time is: one word if it is nearly all, else the two largest parts. */
  ofIt({ inner, parts, hidden, compilations, isCompilation }) {
    const { limits, data: { lines: { again, columns } } } = this;
    if (isCompilation) {
      const when = new Set([...inner.runs].map((run) => again[run])), isRepeated = when.has('every run'), isStored = when.has('this run');
      const word = isRepeated ? (isStored ? 'partly every run' : 'every run') : isStored ? 'this run' : '';
      return word ? `compiling, ${word}` : 'compiling';
    }
    const words = this.named(parts).filter(([, weight]) => weight), every = words.reduce((sum, [, weight]) => sum + weight, 0), share = ([, weight]) => shareOf(weight, every);
    const rename = (word) => (word === 'compiling' && compilations >= limits.functions ? `compiling ${compilations} functions` : word === 'garbage collection' ? 'gc' : word.replace(/^Numba's /, ''));
    const withShare = (entry) => `${rename(entry[0])} ${share(entry).toFixed(0)}`, [call] = this.named(inner.calls), [first, second] = words;
    if (call && share(call) >= limits.callPercent && (inner.kind === COMPILED_LINE || inner.lines)) return withShare(call);
    if (!first) return '';
    let text = share(first) >= limits.oneWordPercent ? rename(first[0]) : withShare(first);
    if (share(first) < limits.oneWordPercent && second && share(second) >= limits.wordPercent && `${text}, ${withShare(second)}`.length <= columns) text += `, ${withShare(second)}`;
    return hidden && `${text}, ${hidden} lines`.length <= columns ? `${text}, ${hidden} lines` : text;
  }
}
