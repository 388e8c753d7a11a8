// Tree of the user's lines for a selected part of the recording, by the rules of the first screen (report/src/answer/). For
// the whole recording, the page contains the tree. This file does not access the page.
const MAX_ROWS = 15, FEW_ROWS = 5, MAX_LINES = 2, MAX_LABEL = 24;
const MIN_SHARE = 0.02, MIN_ROOT_SHARE = 0.005, MIN_CHILD_SHARE = 0.01, MIN_PARENT_SHARE = 0.05, CHAIN_SHARE = 0.95, SHOWN_LINES_SHARE = 0.7;
// Libraries that run parallel loops, and the word for each.
const POOLS = new Map([['libgomp', 'libgomp'], ['libomp', 'libomp'], ['libiomp5', 'libiomp5'], ['libtbb', 'tbb'], ['omppool', 'libgomp'], ['tbbpool', 'tbb'], ['workqueue', 'workqueue']]);

class LineTree {
  constructor(data, stacks) {
    Object.assign(this, { data, stacks, rows: [this.newRow(-1, {})], leaf: new Int32Array(stacks.count), words: new Map() });
    this.addNodes(() => 0);
    // Worker threads run compiled functions without a caller. Their time belongs below the line that calls the same
    // function most often, or the line of Python that calls another of the same file.
    const { total } = stacks.select(null, null), callers = new Map(), weights = new Map();
    for (let node = 1; node < stacks.count; node++) {
      const row = this.rows[this.leaf[node]], isCalled = row.isCompiled && row.up > 0 && this.rows[this.outermost(row.up)].isCompiled === false;
      if (!isCalled || this.leaf[node] === this.leaf[stacks.parent[node]]) continue;
      let python = row.up;
      while (this.rows[python].isCompiled) python = this.rows[python].up;
      for (const [key, up] of [[`${row.f}:${row.file}`, row.up], [`:${row.file}`, python]]) {
        const weight = (weights.get(`${key}:${up}`) || 0) + total[node];
        weights.set(`${key}:${up}`, weight);
        if (!callers.has(key) || weight > callers.get(key)[1]) callers.set(key, [up, weight]);
      }
    }
    this.addNodes((f, file) => (callers.get(`${f}:${file}`) || callers.get(`:${file}`) || [0])[0]);
    this.findLines();
  }

  /**
   * Returns, for each process, the row of the interpreted line that ran in each time slice. Threads that run no Python
   * work for that line. It is unknown if several threads run the user's Python.
   */
  findLines() {
    const { data, stacks, rows } = this, { parts } = stacks, hasPython = new Uint8Array(stacks.count), weights = new Map(), users = new Map();
    for (let node = 1; node < stacks.count; node++) {
      const f = stacks.functionOf[stacks.spot[node]];
      hasPython[node] = hasPython[stacks.parent[node]] || (f >= 0 && data.functions[f].kind === 'python');
    }
    this.runsPython = data.threads.map(() => false);
    this.lines = new Map();
    for (let offset = 0; offset < parts.length; offset += PART_FIELDS) {
      const slice = parts[offset], thread = parts[offset + 1], node = parts[offset + 2], process = data.threads[thread][2];
      let row = this.leaf[node];
      if (hasPython[node]) this.runsPython[thread] = true;
      while (row > 0 && rows[row].isCompiled) row = rows[row].up;
      if (row <= 0 || !hasPython[node]) continue;
      if (!users.has(process)) { users.set(process, new Set()); this.lines.set(process, []); }
      users.get(process).add(thread);
      const key = `${process}:${slice}:${row}`, slices = this.lines.get(process), weight = (weights.get(key) || 0) + stacks.amount(offset);
      weights.set(key, weight);
      if (!slices[slice] || weight >= weights.get(`${process}:${slice}:${slices[slice]}`)) slices[slice] = row;
    }
    for (const [process, slices] of this.lines) {
      if (users.get(process).size > 1) this.lines.delete(process);
      for (let slice = 1; slice < data.stacks.slices; slice++) slices[slice] = slices[slice] || slices[slice - 1] || 0;
    }
  }

  /** Returns the row of a part, and true if the part belongs to the line that another thread ran. */
  rowOf(offset) {
    const { parts } = this.stacks, slice = parts[offset], thread = parts[offset + 1], row = this.leaf[parts[offset + 2]];
    if (row || this.runsPython[thread]) return [row, false];
    const slices = this.lines.get(this.data.threads[thread][2]);
    return slices && slices[slice] ? [slices[slice], true] : [0, false];
  }

  newRow(up, key) { return { up, ...key, below: new Map(), total: 0, own: 0, parts: new Map() }; }

  outermost(row) {
    while (this.rows[row].up > 0) row = this.rows[row].up;
    return row;
  }

  /** Assigns a row to each node. `callerOf` returns the row of the caller of a compiled function that has none. */
  addNodes(callerOf) {
    const { data, stacks } = this;
    for (let node = 1; node < stacks.count; node++) {
      const up = this.leaf[node] = this.leaf[stacks.parent[node]], spot = stacks.spot[node], f = stacks.functionOf[spot], line = stacks.lineOf[spot];
      if (f < 0 || line < 0 || stacks.isEntry[spot]) continue;
      const [file, number] = stacks.places[line], { kind, library, name } = data.functions[f], { path, library: isLibrary } = data.files[file];
      const isCompiled = kind === 'compiled', isGenerated = path[0] === '<' && !path.startsWith('<frozen ');
      const isShown = !isLibrary || (isCompiled && library !== 'numba' && library !== "Python's library");
      if (!number || isGenerated || !isShown || !(isCompiled || kind === 'python')) continue;
      this.leaf[node] = this.child(up || !isCompiled ? up : callerOf(f, file), { file, line: number, f, isCompiled, isModule: name === '<module>' });
    }
  }

  child(up, key) {
    const isSame = (row) => row.file === key.file && row.line === key.line;
    if (up && isSame(this.rows[up])) return up;
    // A recursive function continues at its first place, so that the tree stays flat.
    for (let row = up; row > 0 && !key.isModule; row = this.rows[row].up) {
      if (this.rows[row].f === key.f && this.rows[row].file === key.file) up = this.rows[row].up;
    }
    const { below } = this.rows[up], id = `${key.file}:${key.line}:${key.isCompiled}`;
    if (!below.has(id)) { below.set(id, this.rows.length); this.rows.push(this.newRow(up, key)); }
    return below.get(id);
  }

  /** Returns what a part did. `isOther` is true for a thread that worked for the line of another. */
  word(node, activity, isOther) {
    const key = (node * 16 + activity) * 2 + isOther;
    if (!this.words.has(key)) this.words.set(key, this.findWord(node, activity, isOther));
    return this.words.get(key);
  }

  findWord(node, activity, isOther) {
    const { data, stacks } = this, f = stacks.functionOf[stacks.spot[node]], module = f >= 0 && data.functions[f].module || '';
    const pool = POOLS.get(module.split('/').pop().split(/[-.]/)[0]);
    if (activity === COMPILED) return pool || 'compiled';
    if (activity === INTERPRETED) return 'Python';
    if (activity === LIBRARY && (isOther || pool)) return pool || 'other threads';
    return stacks.libraryOfCode(node, activity) || data.stacks.activities[activity];
  }

  /** Returns the answer for the parts of the chosen threads in the range: the rows, and the time below none of them. */
  select(isChosen, range) {
    const { stacks, rows } = this, { parts } = stacks, slices = range || [0, Infinity];
    for (const row of rows) { row.total = 0; row.parts = new Map(); }
    const add = (row, word, weight) => { row.total += weight; row.parts.set(word, (row.parts.get(word) || 0) + weight); };
    for (let offset = 0; offset < parts.length; offset += PART_FIELDS) {
      if (parts[offset] < slices[0] || parts[offset] >= slices[1] || (isChosen && !isChosen[parts[offset + 1]])) continue;
      const [row, isOther] = this.rowOf(offset);
      add(rows[row], this.word(parts[offset + 2], parts[offset + 3], isOther), stacks.amount(offset));
    }
    const elsewhere = [rows[0].total, this.sorted(rows[0].parts)];
    // A row has a larger number than its caller.
    for (let row = rows.length - 1; row > 0; row--) for (const [word, weight] of rows[row].parts) add(rows[rows[row].up], word, weight);
    return { weight: rows[0].total, rows: this.shown(this.choose()), elsewhere };
  }

  sorted(parts) { return [...parts].sort((a, b) => b[1] - a[1]); }

  /** Returns the rows that may be shown below a row: lines, and a function instead of its lines if they are many and small. */
  rowsBelow(row) {
    const all = this.rows[0].total, functions = new Map(), below = [];
    for (const child of row.lines || [...row.below.values()].map((id) => this.rows[id])) {
      if (!child.total) continue;
      const key = `${child.f}:${child.file}:${child.isCompiled}`;
      if (!functions.has(key)) functions.set(key, []);
      functions.get(key).push(child);
    }
    for (const lines of functions.values()) {
      const sum = (of) => of.reduce((total, line) => total + line.total, 0), total = sum(lines);
      const shown = sum(lines.filter((line) => line.total >= all * MIN_SHARE && line.total >= row.total * MIN_PARENT_SHARE));
      if (row.lines || lines.length <= MAX_LINES || shown >= total * SHOWN_LINES_SHARE || total < all * MIN_SHARE) { below.push(...lines); continue; }
      const parts = new Map(), numbers = lines.map((line) => line.line);
      for (const line of lines) for (const [word, weight] of line.parts) parts.set(word, (parts.get(word) || 0) + weight);
      below.push({ ...lines[0], line: Math.min(...numbers), last: Math.max(...numbers), total, parts, lines });
    }
    return below;
  }

  /** Merges a line with its callee of the same kind while that has nearly all of its time. */
  chain(row) {
    const chain = [row];
    for (;;) {
      const last = chain[chain.length - 1], callee = last.lines ? null : this.rowsBelow(last).sort((a, b) => b.total - a.total)[0];
      if (!callee || callee.lines || callee.isCompiled !== last.isCompiled || callee.total < last.total * CHAIN_SHARE) return chain;
      chain.push(callee);
    }
  }

  /** Returns the widest rows, each followed by the rows below it. */
  choose() {
    const all = this.rows[0].total, chosen = [], candidates = this.rowsBelow(this.rows[0]).map((row) => ({ row, depth: 0, parent: null }));
    while (candidates.length && chosen.length < MAX_ROWS) {
      candidates.sort((a, b) => a.row.total - b.row.total || b.depth - a.depth);
      const { row, depth, parent } = candidates.pop();
      if (row.total < all * MIN_SHARE) {
        if (chosen.length >= FEW_ROWS) break;
        if (row.total < all * (depth ? MIN_CHILD_SHARE : MIN_ROOT_SHARE)) continue;
      }
      if (parent && row.total < parent.chain[0].total * MIN_PARENT_SHARE) continue;
      const entry = { chain: this.chain(row), depth, parent };
      chosen.push(entry);
      candidates.push(...this.rowsBelow(entry.chain[entry.chain.length - 1]).map((below) => ({ row: below, depth: depth + 1, parent: entry })));
    }
    const ordered = (parent) => chosen.filter((entry) => entry.parent === parent).flatMap((entry) => [entry, ...ordered(entry)]);
    return ordered(null);
  }

  shown(chosen) {
    const { files, functions } = this.data, base = (path) => path.slice(path.lastIndexOf('/') + 1), paths = new Map();
    for (const { chain } of chosen) for (const { file } of chain) paths.set(files[file].path, base(files[file].path));
    const isAmbiguous = (name) => name === '__init__.py' || [...paths.values()].filter((other) => other === name).length > 1;
    const name = (file) => { const { path } = files[file]; return isAmbiguous(base(path)) ? path.split('/').slice(-2).join('/') : base(path); };
    const isLast = chosen.map(({ parent }, index) => !chosen.slice(index + 1).some((other) => other.parent === parent));
    const branches = (index) => {
      let text = '', { parent } = chosen[index];
      if (!parent) return text;
      text = isLast[index] ? '└ ' : '├ ';
      for (; parent.parent; { parent } = parent) text = (isLast[chosen.indexOf(parent)] ? '  ' : '│ ') + text;
      return text;
    };
    return chosen.map(({ chain, parent }, index) => {
      const inner = chain[chain.length - 1], [outer] = chain, isOneFile = chain.every(({ file }) => file === inner.file);
      const parentRow = parent && parent.chain[parent.chain.length - 1], isParentFile = parentRow && isOneFile && parentRow.file === inner.file;
      const place = `${isParentFile ? '' : name(outer.file)}:${outer.line}`, below = chosen.filter((other) => other.parent === chosen[index]).reduce((sum, other) => sum + other.chain[0].total, 0);
      const text = isOneFile && below >= outer.total / 2 ? outer : inner, call = functions[inner.f].name.split('.').pop();
      let label = inner.last ? `${place}-${inner.last}` : chain.length < 2 ? place : `${place}${chain.length > 2 ? '»' : '›'}${isOneFile ? '' : name(inner.file) + ':'}${inner.line}`;
      if (!isOneFile && label.length > MAX_LABEL) label = `»${name(inner.file)}:${inner.line}`;
      return { branches: branches(index), label, source: inner.last ? null : [text.file, text.line], text: `${call}()`, code: !inner.last, at: [inner.file, inner.line], path: files[inner.file].path, weight: outer.total, of: this.describe(inner), isCompiled: inner.isCompiled };
    });
  }

  /** Describes what a row's time is: one word if it is nearly all, else the two largest parts. */
  describe({ parts, total }) {
    const short = (word) => (word === 'garbage collection' ? 'gc' : word.replace(/^Numba.s /, '')), sorted = this.sorted(parts).filter(([, weight]) => weight);
    if (!sorted.length) return '';
    if (sorted[0][1] >= total * 0.95) return short(sorted[0][0]);
    return sorted.slice(0, 2).filter(([, weight], index) => !index || weight >= total / 5).map(([word, weight]) => `${short(word)} ${(weight / total * 100).toFixed(0)}`).join(', ');
  }
}
